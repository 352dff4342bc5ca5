# lowkiq-node, a static binary, the CA certificates it trusts, and the stream and the service of
# the sample deployment, deploy/compose. For handlers that are programs (exec), build
# an image of your own from the one that runs them, with COPY --from=lowkiq-node.
#
#     docker build -t lowkiq-node .

ARG BUILD_IMAGE=golang:1.26-bookworm
FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -o /out/lowkiq-node ./cmd/lowkiq-node
RUN mkdir -p /out/etc/ssl/certs /out/sample
RUN CGO_ENABLED=0 go build -trimpath -o /out/sample/worker ./deploy/compose/worker
RUN cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/
RUN gunzip -c internal/stream/rqlite-history.jsonl.gz > /out/sample/events.ndjson

FROM scratch
COPY --from=build /out/ /
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
# gossip, Raft, HTTP
EXPOSE 7946/tcp 7946/udp 7947/tcp 7948/tcp
# Healthy = it has its lease and its shards. LOWKIQ_URL says where, if not on 7948.
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s --retries=3 CMD ["/lowkiq-node", "health", "--ready"]
ENTRYPOINT ["/lowkiq-node"]
CMD ["run", "--config", "/etc/lowkiq/node.yaml"]
