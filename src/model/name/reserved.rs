//! Names that systems keep for themselves. A person who is added by hand, or by another service, has none of them: a log,
//! a message or the record would say "root" and mean somebody else.

use super::UserName;

/// Accounts of Debian and its services, logins of cloud images, and words that gvm says of itself.
const WORDS: &[&str] = &[
    // accounts that are always there
    "root",
    "daemon",
    "bin",
    "sys",
    "sync",
    "games",
    "man",
    "lp",
    "mail",
    "news",
    "uucp",
    "proxy",
    "www-data",
    "backup",
    "list",
    "irc",
    "gnats",
    "nobody",
    "nogroup",
    "operator",
    "halt",
    "shutdown",
    "adm",
    "ftp",
    "sudo",
    "wheel",
    "staff",
    "users",
    "tty",
    "disk",
    "shadow",
    "utmp",
    "toor",
    "www",
    // services
    "messagebus",
    "dbus",
    "sshd",
    "ssh",
    "syslog",
    "uuidd",
    "tcpdump",
    "tss",
    "polkitd",
    "landscape",
    "fwupd-refresh",
    "usbmux",
    "avahi",
    "chrony",
    "ntp",
    "dnsmasq",
    "bind",
    "postfix",
    "exim",
    "dovecot",
    "postgres",
    "postgresql",
    "mysql",
    "redis",
    "nginx",
    "apache",
    "docker",
    "lxd",
    "incus",
    "kvm",
    "qemu",
    "libvirt",
    "libvirt-qemu",
    "libvirt-dnsmasq",
    "swtpm",
    "render",
    "video",
    "slurm",
    "munge",
    "openldap",
    "slapd",
    "sssd",
    "nslcd",
    "prometheus",
    "grafana",
    "nvidia-persistenced",
    "ansible",
    // logins of images
    "debian",
    "ubuntu",
    "fedora",
    "centos",
    "rocky",
    "almalinux",
    "arch",
    "cloud-user",
    "ec2-user",
    "vagrant",
    "tiny",
    // words that mean something else here
    "gvm",
    "gateway",
    "manager",
    "admin",
    "administrator",
    "superuser",
    "system",
    "internal",
    "anonymous",
    "guest",
    "user",
    "team",
    "teams",
    "everybody",
    "everyone",
    "all",
    "none",
    "me",
    "self",
    "host",
    "localhost",
    "support",
    "security",
    "postmaster",
    "hostmaster",
    "webmaster",
    "abuse",
];

/// Families of names.
const BEGINNINGS: &[&str] = &["systemd-", "gvm-", "libvirt-", "nvidia-", "debian-", "snap-", "root-", "admin-"];

impl UserName {
    /// True where systems keep this name for themselves.
    pub fn is_reserved(&self) -> bool {
        let name = self.as_str();
        WORDS.contains(&name) || BEGINNINGS.iter().any(|start| name.starts_with(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_systems_are_kept_and_those_of_people_are_not() {
        for name in
            ["root", "daemon", "gvm", "gvm-gateway", "gateway", "admin", "nobody", "systemd-network", "www-data"]
        {
            assert!(name.parse::<UserName>().unwrap().is_reserved(), "{name}");
        }
        for name in ["anna", "rooty", "gvmx", "systemd", "adminah", "student1", "ci-build"] {
            assert!(!name.parse::<UserName>().unwrap().is_reserved(), "{name}");
        }
        for word in WORDS {
            assert!(word.parse::<UserName>().is_ok(), "{word} is no name anyway");
        }
    }
}
