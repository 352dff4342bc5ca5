#!/bin/sh
# Makes the secrets of the nodes of compose.yml with openssl: tokens, the gossip key, and a certificate for a year.
# Existing secrets stay. To replace them, remove the directory.
#
#     ./secrets.sh [DIRECTORY]      default: secrets, beside this file
#
# node/ is for the nodes. scrape/ is for Prometheus, which may read metrics and nothing else. Other users of this host
# cannot open the directory. The files in it are readable, because containers read them under users of their own.
set -eu
dir=${1:-$(dirname "$0")/secrets}
mkdir -p "$dir"
chmod 700 "$dir"
if [ -e "$dir/node/tls.crt" ]; then
	echo "$dir has secrets already"
	exit 0
fi
rm -rf "$dir/new"
mkdir -p "$dir/new" "$dir/node" "$dir/scrape"
cd "$dir/new"
openssl rand -hex 32 > token
openssl rand -hex 32 > read-token
openssl rand -base64 32 > gossip-key

# The authority's key signs only this certificate and is not kept. The certificate's first name is peer_name in node.yaml.
printf '%s\n' '[req]' 'distinguished_name=dn' 'x509_extensions=ca' '[dn]' '[ca]' 'basicConstraints=critical,CA:TRUE' 'keyUsage=critical,keyCertSign' \
	'[node]' 'basicConstraints=critical,CA:FALSE' 'extendedKeyUsage=serverAuth,clientAuth' \
	'subjectAltName=DNS:lowkiq-node.internal,DNS:localhost,DNS:node,IP:127.0.0.1' > openssl.cnf
openssl ecparam -name prime256v1 -genkey -noout -out ca.key
openssl req -config openssl.cnf -x509 -new -key ca.key -days 365 -subj /CN=lowkiq-ca -out ca.crt
openssl ecparam -name prime256v1 -genkey -noout -out tls.key
openssl req -config openssl.cnf -new -key tls.key -subj /CN=lowkiq-node -out tls.csr
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -extfile openssl.cnf -extensions node -out tls.crt 2> signed ||
	{ cat signed >&2; exit 1; }

chmod 644 token read-token gossip-key ca.crt tls.key tls.crt
cp -p ca.crt read-token ../scrape/
mv token read-token gossip-key ca.crt tls.key ../node/
mv tls.crt ../node/ # last, so that a complete set has it
cd ..
rm -rf new
echo "secrets are in $dir"
