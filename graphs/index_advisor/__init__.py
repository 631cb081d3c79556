"""Indexes that an optimizer or an agent wants, and the person who lets it have them.

An index makes some queries faster, and costs space and every write something: what a search found
good for a workload goes into a production table only past a person. Two graphs ask that person, on
one shop (`shop.py`: a schema in the gateway's own PostgreSQL, with rows and a workload):

- `index-advisor` (`advisor.py`) searches, and asks by an interrupt that its author wrote;
- `index-agent` (`agent.py`) calls tools, and asks by an interrupt that a policy writes.

What waits and what resumes is the same. Under the policy that allows everything, as
`index-agent-alone`, the agent runs through:

    user       Create an index on orders (customer_id), please.
    assistant  This takes create_index.
    assistant  orders_customer_id is there; the workload costs 5.5 instead of 13.3.
"""
