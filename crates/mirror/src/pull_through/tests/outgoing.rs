//! Upstreams that redirect into the network of the mirror.

use super::*;

#[tokio::test]
async fn an_upstream_cannot_redirect_the_mirror_into_its_network() {
    for part in ["/manifests/", "/blobs/"] {
        let (upstream, inside) = (Upstream::new().await, Upstream::new().await);
        upstream.model("library/m", b"weights");
        inside.model("library/m", b"weights");
        *lock(&upstream.state.redirect) = Some((inside.host.clone(), part));
        let server = TestMirror::new(&upstream, HOUR, Upstreams::default());
        let result = server.ask("library/m", "latest", Requester::Trusted).await;
        server.wait_until_idle().await;
        if part == "/manifests/" {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("is not allowed") && !text.contains(&inside.host), "{text}");
        }
        assert!(upstream.request_count(part) > 0);
        assert_eq!(inside.request_count(""), 0, "{part}");
    }
}
