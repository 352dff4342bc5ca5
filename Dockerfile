# An image with lowkiq-node and lowkiq-migrate (static binaries), the CA certificates that they trust, and the stream and
# the service of deploy/compose. For exec handlers, build your own image from an image that runs them, with
# COPY --from=lowkiq-node.
#
#     docker build -t lowkiq-node .

ARG BUILD_IMAGE=golang:1.26-bookworm
FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -o /out/ ./cmd/lowkiq-node ./cmd/lowkiq-migrate
RUN mkdir -p /out/etc/ssl/certs /out/sample
RUN CGO_ENABLED=0 go build -trimpath -o /out/sample/worker ./deploy/compose/worker
RUN cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/
RUN gunzip -c lab/demodata/rqlite-history.jsonl.gz > /out/sample/events.ndjson

FROM scratch
COPY --from=build /out/ /
# A number shows Kubernetes that the user is not root.
USER 65532:65532
# gossip, Raft, HTTP
EXPOSE 7946/tcp 7946/udp 7947/tcp 7948/tcp
# A healthy node has its lease and its shards. LOWKIQ_URL is its address, if it is not on 7948.
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 CMD ["/lowkiq-node", "health", "--ready"]
ENTRYPOINT ["/lowkiq-node"]
CMD ["run", "--config", "/etc/lowkiq/node.yaml"]
