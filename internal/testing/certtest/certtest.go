// Package certtest answers one question: where does a test get certificates from? An [Authority] issues certificates and
// writes them as PEM files to the test's directory.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates, which are valid for an hour.
type Authority struct {
	File string // the file of its own certificate

	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New returns a new authority.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{t: t, File: filepath.Join(t.TempDir(), "ca.pem"), key: newKey(t)}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := a.signCertificate(template, template, &a.key.PublicKey)
	var err error
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	writePEM(t, a.File, "CERTIFICATE", der)
	return a
}

// Server issues, or replaces, a certificate for servers at 127.0.0.1 and localhost.
func (a *Authority) Server(name string) (cert, key string) {
	a.t.Helper()
	return a.issueCertificate(name, here, x509.ExtKeyUsageServerAuth)
}

// Client issues, or replaces, a certificate for clients.
func (a *Authority) Client(name string) (cert, key string) {
	a.t.Helper()
	return a.issueCertificate(name, here, x509.ExtKeyUsageClientAuth)
}

// Both issues, or replaces, a certificate for servers at hosts that connect to each other.
func (a *Authority) Both(name string, hosts ...string) (cert, key string) {
	a.t.Helper()
	return a.issueCertificate(name, hosts, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
}

var here = []string{"127.0.0.1", "localhost"}

func (a *Authority) issueCertificate(name string, hosts []string, usage ...x509.ExtKeyUsage) (cert, key string) {
	a.t.Helper()
	private := newKey(a.t)
	template := &x509.Certificate{Subject: pkix.Name{CommonName: name}, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: usage}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der := a.signCertificate(template, a.cert, &private.PublicKey)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		a.t.Fatal(err)
	}
	dir := filepath.Dir(a.File)
	cert, key = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	writePEM(a.t, cert, "CERTIFICATE", der)
	writePEM(a.t, key, "PRIVATE KEY", pkcs8)
	return cert, key
}

func (a *Authority) signCertificate(template, parent *x509.Certificate, key *ecdsa.PublicKey) []byte {
	a.t.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key, a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	return der
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func writePEM(t testing.TB, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}
