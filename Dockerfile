# An image with the program and nano, which serves on port 8080 as a user without privileges.
#
#   docker build -t flashmoe .
#   docker run --rm -p 127.0.0.1:8080:8080 -v /srv/models:/models:ro flashmoe \
#       serve /models/model.fmoe --host 0.0.0.0 --memory 12G
#
# docs/DEPLOY.md says what a server needs that others can reach.
ARG DEBIAN=bookworm-slim
FROM docker.io/library/debian:${DEBIAN} AS build
RUN apt-get update \
 && apt-get install -y --no-install-recommends cmake gcc libc6-dev libcurl4-openssl-dev \
        libedit-dev libjansson-dev libmicrohttpd-dev libxxhash-dev ninja-build pkg-config
WORKDIR /src
COPY CMakeLists.txt LICENSE ./
COPY apps apps
COPY cmake cmake
COPY contrib contrib
COPY docs docs
COPY include include
COPY models models
COPY src src
RUN cmake -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DFLASHMOE_TESTS=OFF \
        -DCMAKE_INSTALL_PREFIX=/usr \
 && cmake --build build \
 && DESTDIR=/out cmake --install build --component program --strip

FROM docker.io/library/debian:${DEBIAN}
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates libcurl4 libedit2 libjansson4 \
        libmicrohttpd12 libxxhash0 \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home flashmoe
COPY --from=build /out /
USER 10001
WORKDIR /home/flashmoe
# Pulled models and the use of experts; mount a volume here to keep them.
VOLUME /home/flashmoe
EXPOSE 8080
# The server runs as process 1 and ends when it is told to.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=120s \
    CMD ["bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/8080 && printf 'GET /health HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n' >&3 && head -1 <&3 | grep -q ' 200 '"]
ENTRYPOINT ["flashmoe"]
CMD ["serve", "--host", "0.0.0.0"]
