# Two stages: build and unit-free compile on Debian 13, then a slim runtime with bubblewrap.
FROM debian:trixie-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential cmake ninja-build pkg-config \
      libmicrohttpd-dev libjansson-dev libssl-dev libsqlite3-dev libseccomp-dev libyaml-dev libarchive-dev libwslay-dev uthash-dev libcurl4-openssl-dev musl-dev && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DSG_TESTS=OFF && cmake --build build

FROM debian:trixie-slim
RUN apt-get update && apt-get install -y --no-install-recommends bubblewrap slirp4netns ca-certificates git tini \
      libmicrohttpd12t64 libjansson4 libssl3t64 libsqlite3-0 libseccomp2 libyaml-0-2 libarchive13t64 libwslay1 libcurl4t64 && \
    rm -rf /var/lib/apt/lists/* && useradd --system --home-dir /var/lib/sandgate sandgate && \
    install -d -o sandgate -g sandgate -m 0700 /var/lib/sandgate
COPY --from=build /src/build/sandgate /src/build/sandgate-agent /usr/local/bin/
USER sandgate
VOLUME /var/lib/sandgate
EXPOSE 8080
ENV SANDGATE_SERVER_STATE_DIR=/var/lib/sandgate
# Other addresses than loopback need tokens; see README. Nested user namespaces need the seccomp and apparmor options of
# deploy/compose/compose.yaml.
ENTRYPOINT ["/usr/bin/tini", "--", "/usr/local/bin/sandgate"]
CMD ["serve", "--listen", "127.0.0.1:8080"]
