"""A content-addressed build graph: stages, their keys, and a store of their results.

Independent of models and backends. ``stage`` defines stages and keys, ``store`` stores results,
``plan`` explains what a build would run, ``run`` runs it, ``upkeep`` lists, checks and prunes
results.
"""
