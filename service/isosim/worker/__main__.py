"""The worker of an API process: `python -m isosim.worker`, started and ended by `isosim.server.local_worker`."""

from isosim.observability import logs
from isosim.settings import Settings
from isosim.worker.supervisor import run

if __name__ == "__main__":
    settings = Settings()
    logs.configure(settings.log_level, settings.log_format)
    run(settings, attached=True)
