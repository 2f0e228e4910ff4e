# Veil's program on the CPU: `docker build -t veil .`, then `docker run --rm -v "$PWD:/data" veil train people.csv --target income --group sex`.
FROM python:3.11-slim
ARG VERSION=0.2.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt . && rm -rf /src
RUN useradd --create-home veil
USER veil
WORKDIR /data
ENTRYPOINT ["veil"]
CMD ["--help"]
