# escape=`
FROM debian:12
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
ENV GREETING="hello `"world`"" PRICE=`$5 EMPTY=
RUN curl -fsS https://example.com/install.sh | `
    # a comment in the middle
    bash
COPY <<config.ini <<"raw.sh" /etc/app/
greeting = ${GREETING:-none}
config.ini
echo $HOME
raw.sh
ADD --chmod=0644 vendor.tar.gz /opt/vendor/
RUN <<PY
#!/usr/bin/env python3
import sys
print(sys.argv)
PY
STOPSIGNAL SIGINT
VOLUME ["/data"]
