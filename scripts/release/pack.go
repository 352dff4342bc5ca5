package main

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// entry is a file of an archive.
type entry struct {
	name, path string
	mode       int64
}

// writeFile packs entries into a file. User, place and time make no difference.
func writeFile(file string, content []entry, stamp time.Time) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := packArchive(f, content, stamp); err != nil {
		f.Close()
		return fmt.Errorf("%s: %w", file, err)
	}
	return f.Close()
}

func packArchive(w io.Writer, content []entry, stamp time.Time) error {
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	for _, e := range content {
		text, err := os.ReadFile(e.path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(text)), ModTime: stamp, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if _, err := archive.Write(text); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return compressed.Close()
}

// writeSums writes a file that "sha256sum --check" reads, next to the archives.
func writeSums(file string, archives []string) error {
	var lines strings.Builder
	for _, archive := range archives {
		text, err := os.ReadFile(archive)
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(text), filepath.Base(archive))
	}
	return os.WriteFile(file, []byte(lines.String()), 0o644)
}
