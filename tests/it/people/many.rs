//! Ten thousand people, and files that are not right.

use gvm::api::types::UserList;
use serde_json::{Value, json};

use super::{House, MEMBER, ROOT};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_members() {
    let house = House::new().await;
    house.ok(ROOT, "POST", "/v1/teams", json!({"name": "class"})).await;
    let file = house.dir.path().join("class.csv");
    let rows: String = (0..10_000).map(|n| format!("student{n},\"Student, {n}\",class\n")).collect();
    std::fs::write(&file, format!("name,full_name,teams\n{rows}")).unwrap();
    let path = file.to_str().unwrap();
    let checked = house.gvm(ROOT, &["user", "import", path, "--dry-run"]).await.expect(0);
    assert_eq!(checked.stdout, "10000 users could be added\n");
    assert_eq!(house.ok(ROOT, "GET", "/v1/teams/class", Value::Null).await["members"], 0, "nobody was");
    assert_eq!(house.gvm(ROOT, &["user", "import", path]).await.expect(0).stdout, "added 10000 users\n");
    assert_eq!(house.ok(ROOT, "GET", "/v1/teams/class", Value::Null).await["members"], 10_000);
    let again = house.gvm(ROOT, &["user", "import", path]).await.expect(2);
    assert!(again.stderr.contains("class.csv:2: there is a user student0 already"), "{}", again.stderr);

    // Page by page, each name once and in order.
    let (mut names, mut after, mut pages) = (Vec::new(), String::new(), 0);
    loop {
        let page = house.ok(ROOT, "GET", &format!("/v1/users?after={after}&limit=700"), Value::Null).await;
        let page: UserList = serde_json::from_value(page).unwrap();
        pages += 1;
        assert!(page.users.len() <= 700 && (page.next.is_none() || page.users.len() == 700));
        names.extend(page.users.into_iter().map(|user| user.name));
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    assert_eq!((names.len(), pages), (10_002, 15));
    assert!(names.is_sorted() && names.windows(2).all(|pair| pair[0] != pair[1]));
    let listed = house.gvm(ROOT, &["-o", "json", "user", "list"]).await.expect(0).stdout;
    assert_eq!(serde_json::from_str::<UserList>(&listed).unwrap().users.len(), 10_002);
    let some = house.gvm(ROOT, &["user", "list", "student99"]).await.expect(0).stdout;
    assert_eq!(some.lines().count(), 1 + 111, "student99, student990 to 999, student9900 to 9999");
    let members = house.gvm(ROOT, &["-o", "json", "team", "show", "class"]).await.expect(0).stdout;
    let members: Value = serde_json::from_str(&members).unwrap();
    assert_eq!(members["member_names"].as_array().unwrap().len(), 10_000);

    // One among them is found by name, by id, and by the host's account.
    let one = house.ok(ROOT, "GET", "/v1/users/student7777", Value::Null).await;
    assert_eq!((&one["full_name"], &one["default_team"]), (&json!("Student, 7777"), &json!("class")));
    let by_id = house.ok(ROOT, "GET", &format!("/v1/users/{}", one["id"].as_str().unwrap()), Value::Null).await;
    assert_eq!(by_id, one);
    assert_eq!(house.id_seen(7777, "student7777").await.to_string(), one["id"].as_str().unwrap());
    let (status, body) = house.ask(ROOT, "POST", "/v1/users", json!({"name": "studentl0"})).await;
    assert_eq!((status, body["message"].as_str()), (409, Some("the name studentl0 looks like the user student10")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_with_a_fault_adds_nobody() {
    let house = House::new().await;
    house.add("alice").await;
    let file = house.dir.path().join("people.csv");
    std::fs::write(
        &file,
        "name,full_name,role,teams,kind\n\
         bert,Bert,,,\n\
         a1ice,,,,\n\
         \n\
         root,,,,\n\
         bert,,,,\n\
         \"cl\neo\",,,,\n\
         dora,,king,,\n\
         emil,,,nobodys,\n",
    )
    .unwrap();
    let path = file.to_str().unwrap();
    insta::assert_snapshot!("import-words", house.gvm(ROOT, &["user", "import", path]).await.page());
    std::fs::write(&file, "name,teams\nbert,\na1ice,\nroot,\nbert,\nemil,nobodys\n").unwrap();
    insta::assert_snapshot!("import-rules", house.gvm(ROOT, &["user", "import", path]).await.page());
    std::fs::write(&file, "name\n\"bert\n").unwrap();
    let open = house.gvm(ROOT, &["user", "import", path]).await.expect(2);
    assert!(open.stderr.contains("people.csv:2: a quote that is never closed"), "{}", open.stderr);
    let all = house.gvm(ROOT, &["-o", "json", "user", "list"]).await.expect(0).stdout;
    let all: UserList = serde_json::from_str(&all).unwrap();
    assert_eq!(all.users.iter().map(|user| user.name.as_str()).collect::<Vec<_>>(), ["alice", "eve", "root"]);

    // By the API as well, and by nobody who may not.
    let body = json!({"users": [{"name": "bert"}, {"name": "b3rt"}, {"name": "BERT"}]});
    let report = house.ok(ROOT, "POST", "/v1/user-import", body.clone()).await;
    assert_eq!((&report["added"], &report["problems"][0]["index"]), (&json!(0), &json!(2)));
    assert_eq!(house.ask(MEMBER, "POST", "/v1/user-import", body).await.0, 403);
    let many: Vec<Value> = (0..20_001).map(|n| json!({"name": format!("p{n}")})).collect();
    let (status, body) = house.ask(ROOT, "POST", "/v1/user-import", json!({"users": many})).await;
    assert_eq!((status, body["message"].as_str()), (400, Some("20001 people are too many at once")));
}
