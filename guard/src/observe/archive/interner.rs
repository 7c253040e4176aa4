//! [`Interner`]: one copy of an identity, however many checkpoints have it, and of a name, however many identities.

use std::collections::HashSet;
use std::sync::Arc;

use crate::model::{Identity, Owner};

/// What checkpoints share. 100,000 checkpoints of a few hundred owners cost their identities once, and whoever has to tell
/// their owners apart need only compare addresses.
#[derive(Debug, Default)]
pub struct Interner {
    identities: HashSet<Arc<Identity>>,
    names: HashSet<Arc<str>>,
}

impl Interner {
    /// The one copy of `identity`.
    pub fn share(&mut self, mut identity: Identity) -> Arc<Identity> {
        if let Some(known) = self.identities.get(&identity) {
            return known.clone();
        }
        self.share_owner(&mut identity.owner);
        for owner in &mut identity.alternatives {
            self.share_owner(owner);
        }
        self.share_name(&mut identity.pod_uid);
        let new = Arc::new(identity);
        self.identities.insert(new.clone());
        new
    }

    /// Forgets what nobody else holds. Pods come and go; without this the sets only grow.
    pub fn forget_unused(&mut self) {
        self.identities.retain(|identity| Arc::strong_count(identity) > 1);
        self.names.retain(|name| Arc::strong_count(name) > 1);
        self.identities.shrink_to_fit();
        self.names.shrink_to_fit();
    }

    /// How many identities and names are known.
    pub fn len(&self) -> usize {
        self.identities.len() + self.names.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn share_owner(&mut self, owner: &mut Owner) {
        self.share_name(&mut owner.namespace);
        self.share_name(&mut owner.pod);
        self.share_name(&mut owner.container);
    }

    fn share_name(&mut self, name: &mut Option<Arc<str>>) {
        let Some(name) = name else { return };
        match self.names.get(name) {
            Some(known) => *name = known.clone(),
            None => {
                self.names.insert(name.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(container: &str) -> Identity {
        Identity { owner: Owner::new("team", "web-0", container), ..Identity::default() }
    }

    #[test]
    fn equal_identities_and_names_are_stored_once_and_forgotten_with_their_last_holder() {
        let mut interner = Interner::default();
        let one = interner.share(identity("main"));
        let same = interner.share(identity("main"));
        let other = interner.share(identity("db"));
        assert!(Arc::ptr_eq(&one, &same));
        let pod = |identity: &Identity| identity.owner.pod.as_ref().map(Arc::as_ptr);
        assert_eq!(pod(&one), pod(&other));
        assert_eq!(interner.len(), 2 + 4);
        drop((one, same));
        interner.forget_unused();
        assert_eq!(interner.len(), 1 + 3, "the other still holds them");
        drop(other);
        interner.forget_unused();
        assert!(interner.is_empty());
    }
}
