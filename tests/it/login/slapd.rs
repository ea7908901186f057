//! A real directory: slapd with a configuration, people and a certificate of its own, on loopback.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use gvm::config::LdapConfig;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use super::house::secret;
use crate::support::run::{kill, run, until};
use crate::support::skip;

/// The searcher's password.
pub const SEARCHER: &str = "searching-42";

const PEOPLE: &str = "\
dn: dc=uni,dc=example
objectClass: dcObject
objectClass: organization
dc: uni
o: University

dn: cn=gvm,dc=uni,dc=example
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: gvm
userPassword: searching-42

dn: uid=anna,dc=uni,dc=example
objectClass: inetOrgPerson
uid: anna
cn: Anna Example
sn: Example
departmentNumber: staff
departmentNumber: operators
userPassword: pw of anna

dn: uid=bob,dc=uni,dc=example
objectClass: inetOrgPerson
uid: bob
cn: Bob Example
sn: Example
userPassword: pw of bob

dn: cn=twin one,dc=uni,dc=example
objectClass: inetOrgPerson
uid: twin
cn: twin one
sn: Twin
userPassword: pw of twin

dn: cn=twin two,dc=uni,dc=example
objectClass: inetOrgPerson
uid: twin
cn: twin two
sn: Twin
userPassword: pw of twin

dn: ou=elsewhere,dc=uni,dc=example
objectClass: referral
objectClass: extensibleObject
ou: elsewhere
ref: ldap://127.0.0.1:1/ou=elsewhere,dc=uni,dc=example
";

/// The directory.
pub struct Slapd {
    child: Child,
    dir: tempfile::TempDir,
    plain: u16,
    tls: u16,
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// An authority and a certificate for 127.0.0.1 of it, as files.
pub fn certificate(dir: &Path) -> PathBuf {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = Issuer::new(params, key);
    let own = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&own, &issuer).unwrap();
    std::fs::write(dir.join("ca.pem"), authority.pem()).unwrap();
    std::fs::write(dir.join("cert.pem"), leaf.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), own.serialize_pem()).unwrap();
    dir.join("ca.pem")
}

impl Slapd {
    /// None where it is not installed; then it is said why.
    pub fn start(test: &str) -> Option<Self> {
        let program = ["/usr/sbin/slapd", "/usr/lib/openldap/slapd"].into_iter().find(|path| Path::new(path).exists());
        let Some(program) = program else {
            skip::say(test, "slapd is not installed; scripts/setup.sh --test brings it");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path();
        certificate(at);
        std::fs::create_dir(at.join("data")).unwrap();
        let config = format!(
            "include /etc/ldap/schema/core.schema\ninclude /etc/ldap/schema/cosine.schema\n\
             include /etc/ldap/schema/inetorgperson.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n\
             pidfile {at}/pid\nTLSCertificateFile {at}/cert.pem\nTLSCertificateKeyFile {at}/key.pem\n\
             database mdb\nmaxsize 10485760\nsuffix dc=uni,dc=example\nrootdn cn=root,dc=uni,dc=example\ndirectory {at}/data\n\
             access to attrs=userPassword by anonymous auth by * none\n\
             access to * by dn.exact=cn=gvm,dc=uni,dc=example read by * none\n",
            at = at.display()
        );
        std::fs::write(at.join("slapd.conf"), config).unwrap();
        std::fs::write(at.join("people.ldif"), PEOPLE).unwrap();
        let mut add = Command::new(Path::new(program).with_file_name("slapadd"));
        add.arg("-f").arg(at.join("slapd.conf")).arg("-l").arg(at.join("people.ldif"));
        run(add, Duration::from_secs(60)).ok();
        let (plain, tls) = (free_port(), free_port());
        let mut command = Command::new(program);
        command.arg("-f").arg(at.join("slapd.conf")).args(["-d", "0", "-h"]);
        command.arg(format!("ldap://127.0.0.1:{plain} ldaps://127.0.0.1:{tls}"));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let slapd = Self { child, dir, plain, tls };
        until("slapd listens", Duration::from_secs(30), || std::net::TcpStream::connect(("127.0.0.1", tls)).is_ok());
        Some(slapd)
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// How to ask it, over TLS from the first byte.
    pub fn config(&self) -> LdapConfig {
        LdapConfig {
            url: format!("ldaps://127.0.0.1:{}", self.tls),
            ca_file: self.dir.path().join("ca.pem"),
            bind_dn: Some("cn=gvm,dc=uni,dc=example".to_owned()),
            bind_password_file: Some(secret(self.dir.path(), "searcher", SEARCHER)),
            base: "dc=uni,dc=example".to_owned(),
            group_attribute: "departmentNumber".to_owned(),
            ..LdapConfig::default()
        }
    }

    /// The same on the address without TLS.
    pub fn plain(&self) -> LdapConfig {
        LdapConfig { url: format!("ldap://127.0.0.1:{}", self.plain), ..self.config() }
    }

    pub fn stop(&mut self) {
        kill(&mut self.child);
    }
}

impl Drop for Slapd {
    fn drop(&mut self) {
        self.stop();
    }
}
