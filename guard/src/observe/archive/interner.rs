//! [`Interner`]: one copy of a name, however many checkpoints carry it.

use std::collections::HashSet;
use std::sync::Arc;

use crate::model::{Identity, Owner};

/// Names that checkpoints share. 100,000 checkpoints of a few hundred owners cost their names once.
#[derive(Debug, Default)]
pub struct Interner(HashSet<Arc<str>>);

impl Interner {
    /// The one copy of `text`.
    pub fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.0.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.0.insert(new.clone());
        new
    }

    /// Replaces every name in `identity` by the one copy.
    pub fn share(&mut self, identity: &mut Identity) {
        self.share_owner(&mut identity.owner);
        for owner in &mut identity.alternatives {
            self.share_owner(owner);
        }
        self.share_name(&mut identity.pod_uid);
    }

    /// Forgets names that nobody else holds. Pods come and go; without this the set only grows.
    pub fn forget_unused(&mut self) {
        self.0.retain(|name| Arc::strong_count(name) > 1);
    }

    /// How many names are known.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn share_owner(&mut self, owner: &mut Owner) {
        self.share_name(&mut owner.namespace);
        self.share_name(&mut owner.pod);
        self.share_name(&mut owner.container);
    }

    fn share_name(&mut self, name: &mut Option<Arc<str>>) {
        if let Some(name) = name {
            *name = self.intern(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_stored_once_and_forgotten_with_their_last_holder() {
        let mut names = Interner::default();
        let identity = || Identity { owner: Owner::new("team", "web-0", "main"), ..Identity::default() };
        let (mut one, mut other) = (identity(), identity());
        names.share(&mut one);
        names.share(&mut other);
        let pointer = |identity: &Identity| identity.owner.pod.as_ref().map(Arc::as_ptr);
        assert_eq!(pointer(&one), pointer(&other));
        drop(one);
        names.forget_unused();
        assert_eq!(names.len(), 3, "the other still holds them");
        drop(other);
        names.forget_unused();
        assert!(names.is_empty());
    }
}
