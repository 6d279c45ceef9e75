FROM node:22-alpine AS deps
WORKDIR /app
COPY package.json package-lock.json* ./
RUN --mount=type=cache,target=/root/.npm --mount=type=secret,id=npmrc,target=/root/.npmrc npm ci

FROM deps AS lint
COPY . .
RUN npm run lint

FROM node:22-alpine
ARG VERSION
ARG COMMIT=unknown
ENV NODE_ENV=production VERSION=${VERSION:-dev}
LABEL org.opencontainers.image.revision=$COMMIT maintainer="someone@example.com"
WORKDIR /app
COPY --from=deps /app/node_modules ./node_modules
COPY . .
RUN <<EOF
set -e
npm run build
npm prune --omit=dev
EOF
USER node
EXPOSE 3000
CMD npm start
