"""Run the operator tests that a framework ships with its format through import and build."""
