"""The life in the demo's shop: a process that changes it, a few dozen rows per second.

Run as `python -m airflow_provider_pgetl.local.load --rate 30`, the database in PGETL_LOAD_CONNINFO (an
argument would show the password in the process list). It waits for a Postgres that is restarting.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType

import psycopg
from psycopg.types.json import Jsonb

from airflow_provider_pgetl.local import shop

log = logging.getLogger(__name__)
CONNINFO_VARIABLE = "PGETL_LOAD_CONNINFO"
DEFAULT_RATE = 30.0

Connection = psycopg.Connection[tuple[object, ...]]


def place_order(connection: Connection, chooser: random.Random) -> int:
    """Insert an order with its items, take the stock: one transaction over four tables."""
    items = chooser.randint(1, 3)
    row = connection.execute(
        "insert into orders (customer_id, total, note) values (%s, %s, %s) returning id",
        (
            chooser.randint(1, shop.CUSTOMERS),
            chooser.randint(500, 50_000) / 100,
            chooser.choice((None, "gift 🎁")),
        ),
    ).fetchone()
    order = row[0] if row else None
    for line in range(1, items + 1):
        product = chooser.randint(1, shop.PRODUCTS)
        connection.execute(
            "insert into order_items values (%s, %s, %s, %s, %s)",
            (order, line, product, chooser.randint(1, 5), chooser.randint(100, 9_999) / 100),
        )
        connection.execute(
            "update inventory set on_hand = on_hand - 1, bins = bins[1:2] || %s::int, counted_at = now()"
            " where warehouse = %s and product_id = %s",
            (chooser.randint(1, 99), f"W{chooser.randint(1, shop.WAREHOUSES)}", product),
        )
    return 1 + 2 * items


def pay_order(connection: Connection, chooser: random.Random) -> int:
    """Pay the oldest new order: an insert and an update in one transaction."""
    row = connection.execute(
        "update orders set status = 'paid' where id = (select id from orders where status = 'new' limit 1)"
        " returning id, total"
    ).fetchone()
    if row is None:
        return 0
    connection.execute(
        "insert into payments (order_id, amount, fee, method) values (%s, %s, %s, %s)",
        (*row, chooser.random(), chooser.choice(("card", "transfer", "invoice"))),
    )
    return 2


def move_order(connection: Connection, chooser: random.Random) -> int:
    """Ship some order."""
    return connection.execute(
        "update orders set status = 'shipped', shipped_at = now() where id = %s",
        (chooser.randint(1, shop.ORDERS),),
    ).rowcount


def record_event(connection: Connection, chooser: random.Random) -> int:
    """Insert into the partitioned table."""
    payload = {"product": chooser.randint(1, shop.PRODUCTS), "query": "€ \" ' \\", "score": chooser.random()}
    return connection.execute(
        "insert into events (happened_at, customer_id, kind, payload)"
        " select now() - %s * interval '1 day', %s, %s, %s from generate_series(1, 3)",
        (
            chooser.randint(0, 400),
            chooser.randint(1, shop.CUSTOMERS),
            chooser.choice(shop.EVENT_KINDS),
            Jsonb(payload),
        ),
    ).rowcount


def review_description(connection: Connection, chooser: random.Random) -> int:
    """Update beside the long text, which then does not travel."""
    return connection.execute(
        "update product_descriptions set revision = revision + 1, reviewed = not reviewed where product_id = %s",
        (chooser.randint(1, shop.PRODUCTS),),
    ).rowcount


def rewrite_description(connection: Connection, chooser: random.Random) -> int:
    """Update the long text itself."""
    return connection.execute(
        "update product_descriptions set body = %s, revision = revision + 1 where product_id = %s",
        (shop.long_text(chooser), chooser.randint(1, shop.PRODUCTS)),
    ).rowcount


def change_price(connection: Connection, chooser: random.Random) -> int:
    """Update a number and an array."""
    return connection.execute(
        "update products set price = %s, tags = tags || %s::text, updated_at = now()"
        " where id = %s and cardinality(tags) < 9",
        (
            chooser.randint(100, 99_999) / 100,
            f"tag{chooser.randint(1, 99)}",
            chooser.randint(1, shop.PRODUCTS),
        ),
    ).rowcount


def register_customer(connection: Connection, chooser: random.Random) -> int:
    """Insert a customer."""
    return connection.execute(
        "insert into customers (email, name, country) values (%s, %s, %s)",
        (f"{time.time_ns()}@example.com", f"New Customer {chooser.randint(1, 999)} Ünï", "PT"),
    ).rowcount


def cancel_order(connection: Connection, chooser: random.Random) -> int:
    """Delete an order with what belongs to it: one transaction over three tables."""
    row = connection.execute("select id from orders where id > %s limit 1", (chooser.randint(1, shop.ORDERS),))
    order = (row.fetchone() or (None,))[0]
    return sum(
        connection.execute(statement, (order,)).rowcount
        for statement in (
            "delete from order_items where order_id = %s",
            "delete from payments where order_id = %s",
            "delete from orders where id = %s",
        )
    )


def move_stock(connection: Connection, chooser: random.Random) -> int:
    """Change a key: the stock of a product moves to another warehouse, unless it has some there."""
    return connection.execute(
        "update inventory set warehouse = %(to)s where warehouse = %(from)s and product_id = %(product)s"
        " and not exists (select from inventory where warehouse = %(to)s and product_id = %(product)s)",
        {
            "from": f"W{chooser.randint(1, shop.WAREHOUSES + 2)}",
            "to": f"W{chooser.randint(1, shop.WAREHOUSES + 2)}",
            "product": chooser.randint(1, shop.PRODUCTS),
        },
    ).rowcount


Action = Callable[[Connection, random.Random], int]
# How often each happens, relative to the others.
ACTIONS: tuple[tuple[Action, int], ...] = (
    (place_order, 6),
    (pay_order, 5),
    (move_order, 4),
    (record_event, 4),
    (review_description, 3),
    (rewrite_description, 1),
    (change_price, 3),
    (register_customer, 2),
    (cancel_order, 2),
    (move_stock, 2),
)


def act(connection: Connection, chooser: random.Random) -> int:
    """Do one random thing in one transaction; return the number of changed rows."""
    action = chooser.choices([one for one, _ in ACTIONS], [weight for _, weight in ACTIONS])[0]
    with connection.transaction():
        return action(connection, chooser)


@dataclass(slots=True)
class LoadGenerator:
    """Changes the shop at a steady rate until it is told to stop."""

    conninfo: str
    rate: float = DEFAULT_RATE
    chooser: random.Random = field(default_factory=random.Random)
    stopping: bool = False
    changes: int = 0

    def run(self) -> None:
        """Work until stopped; a lost connection is opened again."""
        while not self.stopping:
            try:
                with psycopg.connect(self.conninfo, autocommit=True, connect_timeout=5) as connection:
                    self._work(connection)
            except psycopg.OperationalError as error:
                log.warning("the shop is out of reach (%s), trying again", type(error).__name__)
                time.sleep(1)

    def _work(self, connection: Connection) -> None:
        due = time.monotonic()
        while not self.stopping:
            done = act(connection, self.chooser)
            self.changes += done
            # The next one is due when this one's share of the rate has passed; no catching up after a stall.
            due = max(due, time.monotonic() - 1) + max(done, 1) / self.rate
            while not self.stopping and time.monotonic() < due:
                time.sleep(min(0.1, max(0.0, due - time.monotonic())))

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Finish the current transaction and return from `run`; fits as a signal handler."""
        self.stopping = True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the load generator as a process."""
    parser = argparse.ArgumentParser(description="Change the demo's shop at a steady rate.")
    parser.add_argument("--rate", type=float, default=DEFAULT_RATE, help="changed rows per second")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    generator = LoadGenerator(os.environ[CONNINFO_VARIABLE], rate=options.rate)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, generator.stop)
    generator.run()
    log.info("ended after %s changes", generator.changes)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
