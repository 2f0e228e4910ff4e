# Veil's program on the CPU: `docker build -t veil .`, then `docker run --rm -v "$PWD:/data" veil train people.csv --target income --group sex`.
# With `--build-arg PIP_EXTRA_INDEX_URL=…`, the index of PyTorch's CPU builds, the image is several gigabytes smaller.
FROM python:3.11-slim AS build
ARG VERSION=0.2.0.dev0
ENV SETUPTOOLS_SCM_PRETEND_VERSION=$VERSION
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.11-slim
ARG PIP_EXTRA_INDEX_URL
COPY --from=build /src/constraints.txt /wheels/ /wheels/
RUN pip install --no-cache-dir --constraint /wheels/constraints.txt /wheels/*.whl
RUN useradd --create-home veil && mkdir /data && chown veil /data
USER veil
WORKDIR /data
ENTRYPOINT ["veil"]
CMD ["--help"]
