# syntax=docker/dockerfile:1
ARG PYTHON=3.12
FROM python:${PYTHON}-slim AS base
ENV PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=off \
    PATH="/venv/bin:$PATH"

FROM base AS builder
WORKDIR /src
RUN --mount=type=cache,target=/var/cache/apt,sharing=locked \
    --mount=type=cache,target=/var/lib/apt,sharing=locked \
    apt-get update && apt-get install -y --no-install-recommends gcc
COPY requirements.txt pyproject.toml ./
# install before copying the source, so that this layer is kept
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    python -m venv /venv && \
    pip install -r requirements.txt

FROM base
COPY --from=builder /venv /venv
COPY --chown=1000:1000 . /app
WORKDIR /app
USER 1000
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://localhost:8000')"]
ENTRYPOINT ["python", "-m"]
CMD ["app", "--port", "8000"]
