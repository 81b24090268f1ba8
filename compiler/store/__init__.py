"""A content-addressed build graph: stages, the keys of their results, and the store of both.

It knows nothing of models or backends. ``stage`` says what a stage is and what its key is made of,
``store`` keeps results, ``plan`` says what would run and why, ``run`` runs it, ``upkeep`` lists,
checks and prunes what is kept.
"""
