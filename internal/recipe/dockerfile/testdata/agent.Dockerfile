FROM environment://
USER root
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ripgrep jq \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /workspace
COPY --exclude=node_modules --exclude=**/*.log . .
ENV AGENT_HOME=/workspace AGENT_CACHE=${AGENT_HOME:-/tmp}/cache
RUN mkdir -p "$AGENT_CACHE"
