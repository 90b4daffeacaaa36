# fsd-calib on CPUs: docker build -t fsd-calib . && docker run fsd-calib calibrate --task arithmetic --min-acc 0.98
FROM python:3.11-slim
WORKDIR /fsd-calib
COPY . .
RUN sh install.sh
RUN .venv/bin/fsd --version
ENV PATH=/fsd-calib/.venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["fsd"]
