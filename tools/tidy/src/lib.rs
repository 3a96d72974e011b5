//! The rules of the house that a compiler does not check.
