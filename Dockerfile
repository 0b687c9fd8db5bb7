# An image with tvmflow on the command line, and for Prefect's workers. The workspace is a volume:
#
#   make image
#   docker run --rm -it -v "$PWD:/workspace" --user "$(id -u):$(id -g)" tvmflow run digits
#
# EXTRAS picks the frameworks (torch, keras, onnx, tensorflow, dask, or all). PIP_EXTRA_INDEX_URL, where torch for CPUs alone
# is to come from: the one of the default index brings two gigabytes of CUDA.
FROM python:3.11-slim-bookworm

ARG EXTRAS=all
ARG PIP_EXTRA_INDEX_URL=

# g++ links libraries, for this machine and for arm64 boards; git serves DVC; libgomp1 is xgboost's.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ g++-aarch64-linux-gnu git libgomp1 \
    && rm -rf /var/lib/apt/lists/*

COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE /src/
COPY tvmflow /src/tvmflow
COPY tasks /src/tasks
COPY flows /src/flows
COPY runtime /src/runtime
RUN pip install --no-cache-dir --constraint /src/constraints.txt "/src[${EXTRAS}]" && rm -rf /src

# Whoever runs it: caches of tools, of Prefect and of DVC lie in a home that anybody may write. Nobody else is in it.
ENV HOME=/home/tvmflow \
    TVMFLOW_TRUSTED=/ \
    DO_NOT_TRACK=true \
    PREFECT_SERVER_ANALYTICS_ENABLED=false \
    MLFLOW_DISABLE_TELEMETRY=true \
    DVC_NO_ANALYTICS=1
RUN mkdir -p /home/tvmflow /workspace && chmod 1777 /home/tvmflow /workspace \
    && git config --system --add safe.directory /workspace
USER 1000:1000
WORKDIR /workspace
# Workers of Docker and Kubernetes run `prefect flow-run execute` in it; everything else is a command of tvmflow.
ENTRYPOINT ["sh", "-c", "if [ \"$1\" = prefect ]; then exec \"$@\"; fi; exec tvmflow \"$@\"", "--"]
CMD ["--help"]
