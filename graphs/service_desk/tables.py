"""The tables of the service desk, and what a new desk starts with."""

from __future__ import annotations

TABLES = """
CREATE SCHEMA IF NOT EXISTS service_desk_demo;
CREATE TABLE service_desk_demo.accounts (
    tenant text, id text, resets integer NOT NULL DEFAULT 0, sessions integer NOT NULL DEFAULT 3,
    disabled boolean NOT NULL DEFAULT false, disables integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, id)
);
CREATE TABLE service_desk_demo.services (
    tenant text, name text, environment text, restarts integer NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, name, environment)
);
CREATE TABLE service_desk_demo.data_sets (
    tenant text, name text, environment text, PRIMARY KEY (tenant, name, environment)
);
CREATE TABLE service_desk_demo.requests (
    tenant text, id text, outcome text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE service_desk_demo.articles (
    tenant text, title text, PRIMARY KEY (tenant, title)
);
CREATE TABLE service_desk_demo.tickets (
    tenant text, id text, subject text NOT NULL, status text NOT NULL DEFAULT 'open',
    PRIMARY KEY (tenant, id)
);
CREATE TABLE service_desk_demo.notifications (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text, ticket text, message text
);
CREATE TABLE service_desk_demo.history (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tenant text, proposal text NOT NULL,
    state text NOT NULL CHECK (state IN ('PROPOSED', 'WAITING_FOR_APPROVAL', 'APPROVED', 'REJECTED',
                                         'EXECUTED', 'STOPPED')),
    by text NOT NULL, remark text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE service_desk_demo.rules (
    tenant text, action text, environment text, tier text NOT NULL,
    PRIMARY KEY (tenant, action, environment)
);
CREATE TABLE service_desk_demo.desks (tenant text PRIMARY KEY);
"""

SEED = (
    "INSERT INTO service_desk_demo.accounts VALUES"
    " (%(tenant)s, 'user-123'), (%(tenant)s, 'user-456')",
    "INSERT INTO service_desk_demo.services VALUES"
    " (%(tenant)s, 'mail', 'sandbox'), (%(tenant)s, 'payments', 'production')",
    "INSERT INTO service_desk_demo.data_sets VALUES"
    " (%(tenant)s, 'mails-2019', 'archive'), (%(tenant)s, 'orders', 'production')",
    "INSERT INTO service_desk_demo.articles VALUES"
    " (%(tenant)s, 'VPN: first connection'), (%(tenant)s, 'Passwords: how to choose one')",
    "INSERT INTO service_desk_demo.tickets VALUES"
    " (%(tenant)s, 'INC-42', 'user-123 cannot log in'),"
    " (%(tenant)s, 'INC-43', 'mail is slow'),"
    " (%(tenant)s, 'INC-44', 'user-456 leaves the company'),"
    " (%(tenant)s, 'INC-45', 'the disk is full')",
)
