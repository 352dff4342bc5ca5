package main

import (
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// mountedForUs reports whether a file is on a read-only mount and belongs neither to the user nor to a group of this
// process, like the secrets of a container. Such a file must be readable by others.
func mountedForUs(file string, info fs.FileInfo) bool {
	owner, ok := info.Sys().(*syscall.Stat_t)
	uid := os.Geteuid()
	if !ok || uid == 0 || int(owner.Uid) == uid || int(owner.Gid) == os.Getegid() {
		return false
	}
	if groups, err := os.Getgroups(); err != nil || slices.Contains(groups, int(owner.Gid)) {
		return false
	}
	var mount syscall.Statfs_t
	return syscall.Statfs(file, &mount) == nil && mount.Flags&syscall.MS_RDONLY != 0
}
