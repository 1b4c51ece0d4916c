# Images of isosim: docker build --target cpu|gpu|worker . (docs/how-to/compose.md explains the arguments).
# Needs BuildKit and the syntax of Docker 20.10.

# Pinned by version, since no digest could be checked against a registry. To pin a digest:
# --build-arg BASE=python:3.11-slim-bookworm@sha256:…
ARG BASE=python:3.11-slim-bookworm
# Encoder in the cpu and gpu images: minilm (from a package), a hub id, or /checkpoints/NAME for a folder of
# docker/checkpoints. Empty: none. The mounted model store then has to contain one, and the build needs no torch.
ARG ENCODER=minilm
# Device on which the worker computes vectors: cpu or gpu.
ARG ENGINE=cpu
# openvino: the cpu image and the worker on a CPU can run encoders at bf16, and are 180 MB larger.
ARG CPU_ENGINE=


FROM ${BASE} AS base
ENV PATH=/opt/isosim/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    MALLOC_ARENA_MAX=2 \
    ORT_DISABLE_TELEMETRY=1 \
    PIP_ROOT_USER_ACTION=ignore \
    ISOSIM_HOST=0.0.0.0 \
    ISOSIM_MODEL_STORE=/model_store \
    ISOSIM_SEED_STORE=/opt/isosim/seed_store
# Libraries look up the name of the user id. The chart and docker-compose.yml use the same id. No program needs setuid.
RUN groupadd --gid 10001 isosim \
    && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home --shell /usr/sbin/nologin isosim \
    && install --directory --owner 10001 --group 10001 /model_store \
    && find / -xdev -type f -perm /6000 -exec chmod a-s {} +
# Only this folder (unless ISOSIM_MODEL_STORE names a bucket) and /tmp are written to, so the root file system may be
# read-only: docker run --read-only --tmpfs /tmp.
VOLUME /model_store
EXPOSE 8000
# docker/entrypoint.py, which precedes pip's `isosim` on PATH.
ENTRYPOINT ["isosim"]
LABEL org.opencontainers.image.title="isosim" \
      org.opencontainers.image.description="Calibrated sentence similarity: one threshold that means the same in every domain." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"


# Lists of packages, separate from the rest of pyproject.toml: only a change of these lists rebuilds the layers below.
FROM base AS requirements
COPY pyproject.toml docker/requirements.py /source/
RUN mkdir /requirements \
    && for extra in cpu gpu openvino train; do \
         python /source/requirements.py /source/pyproject.toml "$extra" tracing xlsx bucket > "/requirements/$extra.txt" || exit 1; \
       done
COPY constraints.txt /requirements/


FROM base AS cpu-packages
ARG CPU_ENGINE
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,from=requirements,source=/requirements,target=/requirements \
    pip install --find-links /wheels --constraint /requirements/constraints.txt --requirement /requirements/cpu.txt \
         ${CPU_ENGINE:+--requirement "/requirements/$CPU_ENGINE.txt"}


# CUDA and cuDNN are wheels that onnxruntime-gpu requires; the host provides the driver.
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
# The explicit +cpu build keeps gigabytes of CUDA out of the image.
# For a worker that embeds on a GPU: ENGINE=gpu. The fits run on the CPU, so torch needs no CUDA.
ARG TORCH=torch==2.13.0+cpu
# An index for torch alone, beside pip's own and docker/wheels: PyPI has no builds for CPUs. Empty: none.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
# Byte code is compiled on all cores; tests and architectures of other encoders are left out.
# The version is in the argument.
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,from=requirements,source=/requirements,target=/requirements \
    pip install --no-compile --no-deps --find-links /wheels ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$TORCH" \
    && pip install --no-compile --find-links /wheels --constraint /requirements/constraints.txt \
         --requirement /requirements/train.txt \
    && python -m compileall -q -j 0 -x 'transformers/models|/tests?/|torch/(testing|_inductor)|sympy' \
         "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"


# `baked` has no encoder, `baked-encoder` has one; ENCODER decides which of the two the images use.
FROM base AS baked
RUN mkdir /baked /kept

FROM worker-packages AS baked-encoder
ARG ENCODER
# More options of `isosim export`, such as --layers 3 --pooling mean
ARG EXPORT_OPTIONS=
# Only the code that exports, so that a change of the API does not repeat the export.
COPY service/isosim/*.py /source/service/isosim/
COPY service/isosim/access /source/service/isosim/access
COPY service/isosim/commands /source/service/isosim/commands
COPY service/isosim/domains /source/service/isosim/domains
COPY service/isosim/encoders /source/service/isosim/encoders
COPY service/isosim/export /source/service/isosim/export
COPY service/isosim/fitting /source/service/isosim/fitting
COPY service/isosim/jobs /source/service/isosim/jobs
COPY service/isosim/observability /source/service/isosim/observability
COPY service/isosim/scoring /source/service/isosim/scoring
COPY service/isosim/store /source/service/isosim/store
WORKDIR /source/service
# The options have to be split into words.
# hadolint ignore=SC2086
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=secret,id=hub_token \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    --mount=type=bind,source=docker/checkpoints,target=/checkpoints \
    mkdir /baked /kept && ln -s /kept ~/.cache/isosim \
    && PIP_FIND_LINKS=/wheels HF_TOKEN_PATH=/run/secrets/hub_token \
       python -m isosim.cli export --encoder "$ENCODER" $EXPORT_OPTIONS --model-store /baked --json > /baked/exported.json

# A stage, not an image.
# hadolint ignore=DL3006
FROM baked${ENCODER:+-encoder} AS carried


FROM base AS wheel
COPY pyproject.toml README.md LICENSE constraints.txt /source/
COPY service /source/service
COPY clients/python /source/clients/python
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    PIP_FIND_LINKS=/wheels PIP_CONSTRAINT=/source/constraints.txt pip wheel --no-deps --wheel-dir /dist /source /source/clients/python


# A separate environment that writes the bill of materials; it is not part of an image.
FROM base AS sbom
COPY constraints.txt /source/
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca \
    --mount=type=bind,source=docker/wheels,target=/wheels \
    python -m venv --without-pip /opt/sbom \
    && pip --python /opt/sbom/bin/python install --find-links /wheels --constraint /source/constraints.txt cyclonedx-bom


# The layers from here on change with the code: the package, its bill of materials, labels.
FROM worker-packages AS worker
COPY --from=carried /baked /opt/isosim/seed_store
# The packaged checkpoint, because `isosim export --precision fp16` would need pip to download it.
COPY --from=carried /kept /opt/isosim/seed_store/checkpoints
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=sbom,source=/opt/sbom,target=/opt/sbom \
    --mount=type=bind,source=docker/bill.py,target=/bill.py \
    pip install --no-cache-dir --no-index --no-deps /dist/*.whl \
    && pip uninstall --quiet --yes pip \
    && install --directory /usr/share/isosim \
    && /opt/sbom/bin/cyclonedx-py environment --no-validate --output-file /usr/share/isosim/sbom.cdx.json \
         "$(command -v python)" \
    && python /bill.py /usr/share/isosim/sbom.cdx.json /opt/isosim/seed_store
COPY docker/entrypoint.py /opt/isosim/bin/isosim
ENV HOME=/tmp
USER 10001:10001
CMD ["worker"]
# A worker has no port to check. It is restarted if its process ends; `isosim worker --check` finds one that hangs.
HEALTHCHECK NONE
ARG VERSION=1.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"


FROM gpu-packages AS gpu
COPY --from=carried /baked /opt/isosim/seed_store
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=sbom,source=/opt/sbom,target=/opt/sbom \
    --mount=type=bind,source=docker/bill.py,target=/bill.py \
    pip install --no-cache-dir --no-index --no-deps /dist/*.whl \
    && pip uninstall --quiet --yes pip \
    && install --directory /usr/share/isosim \
    && /opt/sbom/bin/cyclonedx-py environment --no-validate --output-file /usr/share/isosim/sbom.cdx.json \
         "$(command -v python)" \
    && python /bill.py /usr/share/isosim/sbom.cdx.json /opt/isosim/seed_store
COPY docker/entrypoint.py /opt/isosim/bin/isosim
COPY docker/healthcheck.py /opt/isosim/
ENV HOME=/tmp
USER 10001:10001
CMD ["serve", "--init"]
# A large encoder on a cold GPU takes minutes to start.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 CMD ["python", "/opt/isosim/healthcheck.py"]
ARG VERSION=1.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"


FROM cpu-packages AS cpu
COPY --from=carried /baked /opt/isosim/seed_store
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    --mount=type=bind,from=sbom,source=/opt/sbom,target=/opt/sbom \
    --mount=type=bind,source=docker/bill.py,target=/bill.py \
    pip install --no-cache-dir --no-index --no-deps /dist/*.whl \
    && pip uninstall --quiet --yes pip \
    && install --directory /usr/share/isosim \
    && /opt/sbom/bin/cyclonedx-py environment --no-validate --output-file /usr/share/isosim/sbom.cdx.json \
         "$(command -v python)" \
    && python /bill.py /usr/share/isosim/sbom.cdx.json /opt/isosim/seed_store
COPY docker/entrypoint.py /opt/isosim/bin/isosim
COPY docker/healthcheck.py /opt/isosim/
ENV HOME=/tmp
USER 10001:10001
CMD ["serve", "--init"]
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/opt/isosim/healthcheck.py"]
ARG VERSION=1.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
