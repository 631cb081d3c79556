"""Stand-ins for what stands between a gateway and its PostgreSQL."""
