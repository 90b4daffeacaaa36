# fsd-calib on CPUs; what it finds, its cache and its ledger stay in the folder that is mounted:
#     docker build -t fsd-calib .
#     docker run -v "$PWD":/work fsd-calib calibrate --task arithmetic --min-acc 0.98
FROM python:3.11-slim
WORKDIR /fsd-calib
COPY . .
RUN sh install.sh
RUN .venv/bin/fsd --version
ENV PATH=/fsd-calib/.venv/bin:$PATH
ENV FSD_CALIB_CACHE=/work/.fsd-calib/cache FSD_CALIB_STATE=/work/.fsd-calib/state
WORKDIR /work
ENTRYPOINT ["fsd"]
