# The inspector with its chat (`serve`), and workers for submitted pipelines (`worker`):
#   docker build -t context-compiler .
#   docker run -p 8000:8000 -v context:/data context-compiler
#   docker run -v context:/data context-compiler worker
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY context_compiler ./context_compiler
COPY templates ./templates
RUN python -m venv /opt/app && /opt/app/bin/pip install --no-cache-dir ".[web,all,postgres]"

FROM python:3.13-slim
RUN useradd --uid 10001 --home-dir /data --create-home app
COPY --from=build /opt/app /opt/app
COPY docker/healthcheck.py /opt/healthcheck.py
ENV PATH=/opt/app/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    CONTEXT_COMPILER_DB=/data/system/context.db \
    CONTEXT_COMPILER_RUNS=/data/system/runs.db \
    CONTEXT_COMPILER_SYSTEM=/data/system
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=10s --start-period=20s CMD ["python", "/opt/healthcheck.py"]
ENTRYPOINT ["context-compiler"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000"]
