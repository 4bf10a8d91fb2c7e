"""Which packages are installed; all else is in pyproject.toml.

The folder `spark_jobs` is installed as `kbroker_spark_jobs`: a name that only we can mean.
"""

from setuptools import find_packages, setup

PACK = "kbroker_spark_jobs"

setup(
    packages=[
        *find_packages(include=["kbroker", "kbroker.*"]),
        PACK,
        *(f"{PACK}.{name}" for name in find_packages("spark_jobs")),
    ],
    package_dir={PACK: "spark_jobs"},
)
