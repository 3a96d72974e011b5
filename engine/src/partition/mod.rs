//! A partition as its core sees it: which offsets it holds and where they lie, and who wrote them.
