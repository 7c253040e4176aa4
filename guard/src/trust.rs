//! Which authorities a server's certificate is checked against where the configuration names none: those of the system, else
//! Mozilla's, for the image has no system around the binary.

use std::path::PathBuf;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

/// OpenSSL's variables, which name other authorities than the system's.
const NAMED: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// `SSL_CERT_FILE` or `SSL_CERT_DIR` names no certificate that can be read: then nobody is to be trusted.
#[derive(Debug, thiserror::Error)]
#[error("SSL_CERT_FILE and SSL_CERT_DIR name no certificates to check an https server with{problems}")]
pub struct NoAuthorities {
    problems: String,
}

/// The certificates of these authorities. What rustls cannot read is left out, as elsewhere.
///
/// # Errors
/// They are named by `SSL_CERT_FILE` or `SSL_CERT_DIR`, and there are none.
pub fn authorities() -> Result<Vec<CertificateDer<'static>>, NoAuthorities> {
    let found = rustls_native_certs::load_native_certs();
    let problems: String = found.errors.iter().map(|error| format!("; {error}")).collect();
    choose(found.certs, NAMED.iter().any(|name| std::env::var_os(name).is_some()), problems)
}

/// Where the variables say that certificates are: the folder of a file, since files are replaced.
pub fn named_places() -> Vec<PathBuf> {
    let value = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let file = value(NAMED[0]).map(PathBuf::from).and_then(|file| Some(file.parent()?.to_owned()));
    let directories = value(NAMED[1]);
    let directories = directories.iter().flat_map(std::env::split_paths);
    file.into_iter().chain(directories).filter(|place| place.is_absolute()).collect()
}

fn choose(
    mut found: Vec<CertificateDer<'static>>,
    is_named: bool,
    problems: String,
) -> Result<Vec<CertificateDer<'static>>, NoAuthorities> {
    found.retain(|certificate| RootCertStore::empty().add(certificate.clone()).is_ok());
    match found.is_empty() {
        false => Ok(found),
        true if is_named => Err(NoAuthorities { problems }),
        true => Ok(webpki_root_certs::TLS_SERVER_ROOT_CERTS.to_vec()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mozillas() -> Vec<CertificateDer<'static>> {
        choose(Vec::new(), false, String::new()).unwrap()
    }

    #[test]
    fn without_a_system_the_public_authorities_are_trusted_and_rustls_reads_them_all() {
        let public = mozillas();
        assert!(public.len() > 50, "{}", public.len());
        let (read, unread) = RootCertStore::empty().add_parsable_certificates(public);
        assert_eq!(unread, 0, "{read}");
    }

    #[test]
    fn with_a_system_only_its_own_are_trusted_less_what_cannot_be_read() {
        let own = mozillas().remove(0);
        let found = vec![CertificateDer::from(&b"no certificate"[..]), own.clone()];
        assert_eq!(choose(found, false, String::new()).unwrap(), [own]);
    }

    #[test]
    fn authorities_that_are_named_and_not_there_are_not_replaced_by_others() {
        let error = choose(Vec::new(), true, "; /etc/none.pem: not found".to_owned()).unwrap_err();
        assert!(
            error.to_string().contains("SSL_CERT_FILE")
                && error.to_string().ends_with("/etc/none.pem: not found")
        );
    }
}
