"""The service desk: what is risky waits for a person, and then happens once. Served as
`service-desk`.

    start → propose_action → check_policy ─ allowed ──────────────→ execute → record_result → end
                                  │                                  │    │
                                  ├─ a person is asked → request_approval │ the policy has changed
                                  │                          │            │
                                  │                        review ─ approved → execute
                                  │                          │ └─── edited → revise → check_policy
                                  └─ denied ───→ stop ←── rejected        └→ stop, or asked anew

- `proposals.py` reads from the user's words what is to be done, as an agent's model would.
- `policy.py` says what needs whom. Its rules are rows of a table, so they may change at any time.
- `systems.py` is the world: accounts, tickets, services and messages in small tables.
- `desk.py` is the graph.

Proposal, gate, execution and recording are nodes of their own, and no effect stands before a pause.
Each proposal has the key of its business operation, `reset:INC-42:user-123:proposal-v1`; an edit
makes the next version of it. Its states are PROPOSED, WAITING_FOR_APPROVAL, APPROVED or REJECTED,
EXECUTED or STOPPED: told in the conversation, and kept in `service_desk_demo.history`.

An approval is not an authorisation. When it comes the policy is asked again, and a policy that has
changed meanwhile wins; whether the answer is on record, and is about exactly these arguments, is
the ledger's to say.

    user       Please restart mail in the sandbox, INC-43.
    assistant  PROPOSED restart:INC-43:mail:proposal-…: restart mail in the sandbox.
    assistant  EXECUTED restart:INC-43:mail:proposal-…: mail was restarted in the sandbox.
    user       And payments in production: restart payments in production, INC-43.
    assistant  PROPOSED restart:INC-43:payments:proposal-…: restart payments in production.
    assistant  WAITING_FOR_APPROVAL of anybody at the desk.
    call       approve_restart_service("May the desk restart payments in production? (INC-43)",
               {"service": "payments", "environment": "production"})
    output     approve
    assistant  EXECUTED restart:INC-43:payments:proposal-…: payments was restarted in production.
    user       Delete the production data orders, INC-45.
    assistant  PROPOSED delete:INC-45:orders:proposal-…: delete orders in production.
    assistant  STOPPED delete:INC-45:orders:proposal-…: the desk's policy prohibits it.

What needs a manager needs credentials: `desk.py` shows it.
"""

from __future__ import annotations

from graphs.service_desk.desk import build

__all__ = ["build"]
