//! What there is of NVIDIA's fabric manager, by its files alone: nothing is started, and nothing connected to.

use std::os::unix::fs::FileTypeExt as _;

use super::files::Files;
use crate::model::gpu::fabric::FabricManager;

/// Its settings, in the places where its packages have put them.
const SETTINGS: [&str; 2] =
    ["usr/share/nvidia/nvswitch/fabricmanager.cfg", "etc/nvidia-fabricmanager/fabricmanager.cfg"];
/// They explain themselves at length.
const MAX_SETTINGS: usize = 256 << 10;
/// Longer than any path of a socket, which end at 108 bytes.
const MAX_VALUE: usize = 256;
const DRIVER: &str = "sys/module/nvidia/version";

/// Reads what is there.
pub(super) fn read(files: &Files) -> FabricManager {
    let text = |path: &'static str| {
        files.whole(path, MAX_SETTINGS).map(|bytes| (path, String::from_utf8_lossy(&bytes).into_owned()))
    };
    let found = SETTINGS.into_iter().find_map(text);
    let value = |key: &str| found.as_ref().and_then(|(_, text)| value(text, key));
    let socket = value("FM_CMD_UNIX_SOCKET_PATH").filter(|path| path.starts_with('/')).map(str::to_owned);
    FabricManager {
        settings: found.as_ref().map(|(path, _)| format!("/{path}")),
        looked_for: SETTINGS.iter().map(|path| format!("/{path}")).collect(),
        mode: value("FABRIC_MODE").and_then(|mode| mode.parse().ok()),
        is_socket_there: socket.as_ref().is_some_and(|path| is_socket(files, path)),
        socket,
        driver: files.text(DRIVER).filter(|version| !version.is_empty()),
    }
}

/// The last line that sets it counts, as for whoever reads the file from its top.
fn value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    let set = |line: &'t str| {
        let (name, value) = line.trim().split_once('=')?;
        (name.trim_end() == key).then(|| value.trim().trim_matches('"'))
    };
    let value = text.lines().filter_map(set).next_back()?;
    (!value.is_empty() && value.len() <= MAX_VALUE && !value.chars().any(char::is_control)).then_some(value)
}

fn is_socket(files: &Files, path: &str) -> bool {
    let below = path.trim_start_matches('/');
    std::fs::metadata(files.path(below)).is_ok_and(|metadata| metadata.file_type().is_socket())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::super::tree_tests::Tree;
    use super::*;

    const BOARD: &str = "# Description: mode\n#FABRIC_MODE=0\nFABRIC_MODE=1\n\nFABRIC_MODE_RESTART=0\nFM_CMD_UNIX_SOCKET_PATH=/run/nvidia-fabricmanager/socket\nUNIX_SOCKET_PATH=/run/other\n";

    fn look(tree: &Tree) -> FabricManager {
        read(&Files::below(&tree.path("")))
    }

    #[test]
    fn settings_and_socket_are_found_where_they_are() {
        let tree = Tree::new();
        let nothing = look(&tree);
        assert_eq!((nothing.settings.as_ref(), nothing.mode, nothing.looked_for.len()), (None, None, 2));
        tree.write(SETTINGS[0], BOARD).write("sys/module/nvidia/version", "580.95.05\n");
        let settled = look(&tree);
        assert_eq!(settled.settings.as_deref(), Some("/usr/share/nvidia/nvswitch/fabricmanager.cfg"));
        assert_eq!((settled.mode, settled.driver.as_deref()), (Some(1), Some("580.95.05")));
        assert_eq!(
            (settled.socket.as_deref(), settled.is_socket_there),
            (Some("/run/nvidia-fabricmanager/socket"), false)
        );
        // A file in its place is none.
        tree.write("run/nvidia-fabricmanager/socket", "");
        assert!(!look(&tree).is_socket_there);
        std::fs::remove_file(tree.path("run/nvidia-fabricmanager/socket")).unwrap();
        let _listener = UnixListener::bind(tree.path("run/nvidia-fabricmanager/socket")).unwrap();
        assert!(look(&tree).is_socket_there && look(&tree).missing().contains("libnvfm"));
    }

    #[test]
    fn the_other_place_and_junk_are_read_as_well() {
        let tree = Tree::new();
        tree.write(SETTINGS[1], "FABRIC_MODE = 2\r\nFABRIC_MODE=\"1\"\nFM_CMD_UNIX_SOCKET_PATH=\n");
        let other = look(&tree);
        assert_eq!(other.settings.as_deref(), Some("/etc/nvidia-fabricmanager/fabricmanager.cfg"));
        assert_eq!((other.mode, other.socket), (Some(1), None));
        for junk in [
            b"\xff\x00\xfe=\x00".to_vec(),
            b"FABRIC_MODE=one\nFM_CMD_UNIX_SOCKET_PATH=run/x\n".to_vec(),
            vec![b'='; MAX_SETTINGS],
        ] {
            tree.write(SETTINGS[1], junk);
            assert_eq!((look(&tree).mode, look(&tree).socket), (None, None));
        }
        tree.write(SETTINGS[1], vec![b'x'; MAX_SETTINGS + 1]);
        assert_eq!(look(&tree).settings, None);
    }
}
