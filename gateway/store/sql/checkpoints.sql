-- LangGraph's tables. The run's id, which is their thread, was looked up under its tenant.

-- part: saved
-- Of `paused`, the run's id, so that nothing is written if a fence before it found nothing. A step of a background run
-- may have left rows with these keys. A later look at the same checkpoint or task counts; the value of a channel's
-- version never changes.
saved_checkpoints AS (
    INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint, metadata)
    SELECT paused.run_id, ns, batch.id, parent, checkpoint::jsonb, metadata::jsonb
      FROM paused, unnest(%(checkpoint_ns)b::text[], %(checkpoint_ids)b::text[], %(parent_ids)b::text[], %(checkpoints)b::text[],
                          %(metadata)b::text[])
           AS batch (ns, id, parent, checkpoint, metadata)
        ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id) DO UPDATE
       SET checkpoint = excluded.checkpoint, metadata = excluded.metadata
), saved_blobs AS (
    INSERT INTO checkpoint_blobs (thread_id, checkpoint_ns, channel, version, type, blob)
    SELECT paused.run_id, ns, channel, version, type, blob
      FROM paused, unnest(%(blob_ns)b::text[], %(blob_channels)b::text[], %(blob_versions)b::text[],
                          %(blob_types)b::text[], %(blobs)b::bytea[])
           AS batch (ns, channel, version, type, blob)
        ON CONFLICT (thread_id, checkpoint_ns, channel, version) DO NOTHING
), saved_writes AS (
    INSERT INTO checkpoint_writes
           (thread_id, checkpoint_ns, checkpoint_id, task_id, task_path, idx, channel, type, blob)
    SELECT paused.run_id, ns, batch.id, task_id, task_path, number, channel, type, blob
      FROM paused, unnest(%(write_ns)b::text[], %(write_ids)b::text[], %(write_tasks)b::text[],
                          %(write_paths)b::text[], %(write_numbers)s::integer[], %(write_channels)b::text[],
                          %(write_types)b::text[], %(writes)b::bytea[])
           AS batch (ns, id, task_id, task_path, number, channel, type, blob)
        ON CONFLICT (thread_id, checkpoint_ns, checkpoint_id, task_id, idx) DO UPDATE
       SET task_path = excluded.task_path, channel = excluded.channel, type = excluded.type, blob = excluded.blob
)

-- name: save_checkpoints
-- A later pause, and a failure after which the answers may be sent again. A run in the background has rows of its
-- finished steps already, which are written over.
WITH paused AS (SELECT %(run_id)s::text AS run_id),
-- with: saved
SELECT run_id FROM paused;

-- name: checkpoints_of
-- All three tables at once: each statement costs a round trip's work in the client.
SELECT 'checkpoint' AS kind, checkpoint_ns AS ns, checkpoint_id AS id, parent_checkpoint_id AS parent, checkpoint,
       metadata, NULL AS channel, NULL AS version, NULL AS task_id, NULL AS task_path, NULL::integer AS number,
       NULL AS type, NULL::bytea AS blob
  FROM checkpoints WHERE thread_id = %(run_id)s
UNION ALL
SELECT 'blob', checkpoint_ns, NULL, NULL, NULL, NULL, channel, version, NULL, NULL, NULL, type, blob
  FROM checkpoint_blobs WHERE thread_id = %(run_id)s
UNION ALL
SELECT 'write', checkpoint_ns, checkpoint_id, NULL, NULL, NULL, channel, NULL, task_id, task_path, idx, type, blob
  FROM checkpoint_writes WHERE thread_id = %(run_id)s;
