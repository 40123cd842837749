//! Images by address behind the door: what is said where they are not fetched, and where the model would not see them.

use tokio::net::TcpListener;

use super::*;

#[tokio::test]
async fn images_by_address_are_refused_by_the_switch_s_name_or_for_want_of_eyes_and_nothing_is_fetched() {
    let host = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/a.png", host.local_addr().unwrap());
    let requests = [
        (
            "/v1/chat/completions",
            json!({"model": "cria", "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": url}}]}]}),
        ),
        (
            "/v1/responses",
            json!({"model": "cria", "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url}]}]}),
        ),
        (
            "/v1/responses/input_tokens",
            json!({"model": "cria", "input": [{"role": "user", "content": [
            {"type": "input_image", "image_url": url}]}]}),
        ),
        (
            "/v1/messages",
            json!({"model": "cria", "max_tokens": 5, "messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "url", "url": url}}]}]}),
        ),
        (
            "/v1/messages/count_tokens",
            json!({"model": "cria", "messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [
                {"type": "image", "source": {"type": "url", "url": url}}]}]}]}),
        ),
    ];
    let off = Bench::new();
    let on = Bench::with(|config| (config.image_urls, config.image_hosts) = (true, vec!["127.0.0.1".into()]));
    for (path, body) in requests {
        for (bench, want) in [(&off, "image_urls"), (&on, "model does not support image input")] {
            let answer = bench.post(path, body.clone()).await;
            let text = answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
            assert!(answer.status == 400 && text.contains(want), "{path}: {want}: {}", answer.body);
        }
    }
    let asked = tokio::time::timeout(Duration::from_millis(100), host.accept()).await;
    assert!(asked.is_err(), "somebody was asked for an image that nobody sees");
}
