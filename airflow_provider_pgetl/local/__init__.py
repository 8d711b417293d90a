"""The local stack: a Postgres, a Spark Connect server and an Airflow of one's own.

Each server has a file (`postgres`, `spark`, `airflow`) that knows how it is started; `supervisor` keeps them
running and ends them; `checks` says what is in the way before anything starts; `shop` and `load` are the
demo's source database and the life in it. Nothing here is needed where Airflow and Spark already run.
"""

from __future__ import annotations
