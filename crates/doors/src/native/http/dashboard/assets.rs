//! The files that pages name: scripts and styles, a part of the program.
//!
//! The address of a file has a hash of its content, so that a browser may keep it for good and a new version of the
//! server brings its own.

use std::sync::LazyLock;

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};

/// One file.
pub(super) struct Asset {
    name: &'static str,
    media_type: &'static str,
    content: &'static str,
}

/// All files.
static ASSETS: [Asset; 4] = [
    Asset { name: "app.css", media_type: "text/css; charset=utf-8", content: include_str!("assets/app.css") },
    Asset {
        name: "theme.js",
        media_type: "text/javascript; charset=utf-8",
        content: include_str!("assets/theme.js"),
    },
    Asset {
        name: "app.js",
        media_type: "text/javascript; charset=utf-8",
        content: include_str!("assets/app.js"),
    },
    Asset { name: "icon.svg", media_type: "image/svg+xml", content: include_str!("assets/icon.svg") },
];

/// The addresses of the files, in their order, without the folder.
static ADDRESSES: LazyLock<Vec<String>> = LazyLock::new(|| {
    ASSETS.iter().map(|asset| format!("{:016x}-{}", hash(asset.content.as_bytes()), asset.name)).collect()
});

/// The address of a file, below the folder of assets.
pub(super) fn address(name: &str) -> &'static str {
    let at = ASSETS.iter().position(|asset| asset.name == name);
    &ADDRESSES[at.expect("pages name files that exist")]
}

/// The file at this address.
pub(super) fn response(address: &str) -> Option<Response<Body>> {
    let at = ADDRESSES.iter().position(|known| known == address)?;
    let mut response = Response::new(Body::from(ASSETS[at].content));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(ASSETS[at].media_type));
    let forever = HeaderValue::from_static("public, max-age=31536000, immutable");
    headers.insert(header::CACHE_CONTROL, forever);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Some(response)
}

/// FNV-1a. It tells versions apart and finds accidental damage; an attacker could make another text with the same
/// hash.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_by_its_address_alone() {
        for asset in &ASSETS {
            let found = response(address(asset.name)).expect("a file");
            assert_eq!(found.headers()[header::CONTENT_TYPE], asset.media_type);
            assert!(response(asset.name).is_none());
        }
        assert!(response("0000000000000000-app.css").is_none());
    }

    #[test]
    fn scripts_and_styles_ask_other_servers_for_nothing() {
        for asset in ASSETS.iter().filter(|asset| asset.name != "icon.svg") {
            assert!(
                !asset.content.contains("//cdn") && !asset.content.contains("https://"),
                "{}",
                asset.name
            );
        }
    }
}
