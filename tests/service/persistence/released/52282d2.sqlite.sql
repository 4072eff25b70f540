-- A state as release 0.1.0 of November 2026 (commit 52282d2) wrote it: three versions of digits, a rollout that was
-- rolled back, one that runs, a label, a shadow, feedback, and a gateway that was killed. Made by that commit's own code.
BEGIN TRANSACTION;
CREATE TABLE torchgate_events (
	id INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	gateway VARCHAR(100) NOT NULL, 
	actor VARCHAR(200) NOT NULL, 
	action VARCHAR(50) NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	subject VARCHAR(200) NOT NULL, 
	reason TEXT NOT NULL, 
	outcome VARCHAR(20) NOT NULL, 
	detail TEXT NOT NULL, 
	"before" TEXT, 
	"after" TEXT, 
	PRIMARY KEY (id)
);
INSERT INTO "torchgate_events" VALUES(1,1764000004.5,'host-a1b2c3d4','gateway','notice','digits','1.0, 1.1, 1.2','','done','found in the model store','{"revision": 0, "versions": {}, "weights": {}, "sticky_header": null, "shadows": {}, "labels": {}, "rollout": null}','{"revision": 1, "versions": {"1.0": null, "1.1": null, "1.2": null}, "weights": {"1.0": 100.0}, "sticky_header": "x-routing-key", "shadows": {}, "labels": {}, "rollout": null}');
INSERT INTO "torchgate_events" VALUES(2,1764000006.0,'host-a1b2c3d4','operator@host','traffic','digits','','the new one','done','','{"revision": 1, "versions": {"1.0": null, "1.1": null, "1.2": null}, "weights": {"1.0": 100.0}, "sticky_header": "x-routing-key", "shadows": {}, "labels": {}, "rollout": null}','{"revision": 2, "versions": {"1.0": null, "1.1": null, "1.2": null}, "weights": {"1.1": 100.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {}, "rollout": null}');
INSERT INTO "torchgate_events" VALUES(3,1764000007.5,'host-a1b2c3d4','operator@host','traffic','digits','','is it as good?','done','','{"revision": 2, "versions": {"1.0": null, "1.1": null, "1.2": null}, "weights": {"1.1": 100.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {}, "rollout": null}','{"revision": 3, "versions": {"1.0": null, "1.1": null, "1.2": null}, "weights": {"1.0": 60.0, "1.1": 40.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {}, "rollout": null}');
INSERT INTO "torchgate_events" VALUES(4,1764000009.0,'host-a1b2c3d4','operator@host','label','digits','canary','','done','1.2','{"revision": 3, "versions": {"1.0": null, "1.1": null, "1.2": null}, "weights": {"1.0": 60.0, "1.1": 40.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {}, "rollout": null}','{"revision": 4, "versions": {"1.0": null, "1.1": null, "1.2": null}, "weights": {"1.0": 60.0, "1.1": 40.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": null}');
INSERT INTO "torchgate_events" VALUES(5,1764000010.5,'host-a1b2c3d4','operator@host','scale','digits','1.2','','done','','{"revision": 4, "versions": {"1.0": null, "1.1": null, "1.2": null}, "weights": {"1.0": 60.0, "1.1": 40.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": null}','{"revision": 5, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 60.0, "1.1": 40.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": null}');
INSERT INTO "torchgate_events" VALUES(6,1764000012.0,'host-a1b2c3d4','operator@host','traffic','digits','','','done','','{"revision": 5, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 60.0, "1.1": 40.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": null}','{"revision": 6, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 100.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": null}');
INSERT INTO "torchgate_events" VALUES(7,1764000013.5,'host-a1b2c3d4','operator@host','rollout','digits','1.1','','done','','{"revision": 6, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 100.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": null}','{"revision": 7, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 90.0, "1.1": 10.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": {"id": 1, "version": "1.1", "state": "running", "step": "10 %"}}');
INSERT INTO "torchgate_events" VALUES(8,1764000015.0,'host-a1b2c3d4','rollout','roll_back','digits','1','','done','','{"revision": 7, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 90.0, "1.1": 10.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": {"id": 1, "version": "1.1", "state": "running", "step": "10 %"}}','{"revision": 8, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 100.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": {"id": 1, "version": "1.1", "state": "rolled_back", "step": "10 %"}}');
INSERT INTO "torchgate_events" VALUES(9,1764000016.5,'host-a1b2c3d4','operator@host','rollout','digits','1.2','','done','','{"revision": 8, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 100.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": {"id": 1, "version": "1.1", "state": "rolled_back", "step": "10 %"}}','{"revision": 9, "versions": {"1.0": null, "1.1": null, "1.2": 3}, "weights": {"1.0": 95.0, "1.2": 5.0}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}, "labels": {"canary": "1.2"}, "rollout": {"id": 2, "version": "1.2", "state": "running", "step": "5 %"}}');
INSERT INTO "torchgate_events" VALUES(10,1764000018.0,'host-a1b2c3d4','unknown','traffic','digits','','by hand','refused','admin_token_wrong: The admin token is wrong',NULL,NULL);
CREATE TABLE torchgate_feedback (
	answer VARCHAR(100) NOT NULL, 
	item INTEGER NOT NULL, 
	model VARCHAR(200) NOT NULL, 
	version VARCHAR(200) NOT NULL, 
	predicted VARCHAR(200) NOT NULL, 
	label VARCHAR(200) NOT NULL, 
	is_correct BOOLEAN NOT NULL, 
	time FLOAT NOT NULL, 
	PRIMARY KEY (answer, item)
);
INSERT INTO "torchgate_feedback" VALUES('a9f6f95e787ccfb04870b27828d8f207',0,'digits','1.0','two','two',1,1764000019.5);
CREATE TABLE torchgate_gateways (
	gateway VARCHAR(100) NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (gateway)
);
INSERT INTO "torchgate_gateways" VALUES('host-a1b2c3d4','{"number": 7, "seen": {"digits": 9}, "busy": [["digits", "1.1"]]}');
CREATE TABLE torchgate_guard_counts (
	model VARCHAR(200) NOT NULL, 
	rollout INTEGER NOT NULL, 
	gateway VARCHAR(100) NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (model, rollout, gateway)
);
INSERT INTO "torchgate_guard_counts" VALUES('digits',2,'host-a1b2c3d4','{"num_new": 30, "errors_new": [1, 30], "errors_old": [5, 600], "slow_new": [0, 30], "slow_old": [2, 600], "disagreements": [1, 20], "wrong_new": [0, 0], "wrong_old": [0, 0]}');
CREATE TABLE torchgate_leases (
	name VARCHAR(100) NOT NULL, 
	holder VARCHAR(100) NOT NULL, 
	beat INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "torchgate_leases" VALUES('rollouts','host-a1b2c3d4',1);
CREATE TABLE torchgate_models (
	model VARCHAR(200) NOT NULL, 
	revision INTEGER NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (model)
);
INSERT INTO "torchgate_models" VALUES('digits',9,'{"versions": {"1.0": {"archive": {"file": "digits-1.0.mar", "model": "digits", "version": "1.0", "release": "1.0", "variant": "fp32", "sha256": "3333333333333333333333333333333333333333333333333333333333333333"}, "num_workers": null, "is_wanted": true}, "1.1": {"archive": {"file": "digits-1.1.mar", "model": "digits", "version": "1.1", "release": "1.1", "variant": "fp32", "sha256": "3333333333333333333333333333333333333333333333333333333333333333"}, "num_workers": null, "is_wanted": true}, "1.2": {"archive": {"file": "digits-1.2.mar", "model": "digits", "version": "1.2", "release": "1.2", "variant": "fp32", "sha256": "3333333333333333333333333333333333333333333333333333333333333333"}, "num_workers": 3, "is_wanted": true}}, "policy": {"owned": {"1.0": [[4000, 10000], [0, 3500]], "1.2": [[3500, 4000]]}, "sticky_header": "x-user", "shadows": {"1.2": 5.0}}, "labels": {"canary": "1.2"}, "earlier": ["1.1", "1.0"], "rollouts": [{"id": 1, "spec": {"version": "1.1", "steps": [10.0, 100.0], "min_requests": 50, "min_seconds": 5.0, "error_rate": 0.01, "slow_ms": 100.0, "slow_tolerance": 1.5, "shadow_percent": 10.0, "min_agreement": 0.95}, "stable": "1.0", "state": "rolled_back", "step": 0, "started": 1764000000.0, "reason": "guard errors: 6 of 70 requests failed (8.57%)"}, {"id": 2, "spec": {"version": "1.2", "steps": [5.0, 50.0, 100.0], "min_requests": 50, "min_seconds": 5.0, "error_rate": 0.01, "slow_ms": 100.0, "slow_tolerance": 1.5, "shadow_percent": 10.0, "min_agreement": 0.95}, "stable": "1.0", "state": "running", "step": 0, "started": 1764000100.0, "reason": ""}]}');
CREATE TABLE torchgate_rollout_progress (
	model VARCHAR(200) NOT NULL, 
	rollout INTEGER NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY (model, rollout)
);
INSERT INTO "torchgate_rollout_progress" VALUES('digits',2,'{"counted": {"num_new": 30, "errors_new": [1, 30], "errors_old": [5, 600], "slow_new": [0, 30], "slow_old": [2, 600], "disagreements": [1, 20], "wrong_new": [0, 0], "wrong_old": [0, 0]}, "weighed": {"num_new": 0, "errors_new": [1, 30], "errors_old": [5, 600], "slow_new": [0, 30], "slow_old": [2, 600], "disagreements": [1, 20], "wrong_new": [0, 0], "wrong_old": [0, 0]}, "evidence": {"errors": [0.2642821236470001, 0.41402708675058825, 0.5527816194337499, 0.5633175895654344, 0.16253542936165188, -1.8038060245661827], "p99": [-0.06857814695726415, -0.1348825615910653, -0.26124036483412816, -0.4922661390778169, -0.9745902527115934, -2.2126686695240405], "agreement": [-0.1012315864529002, -0.3341300235752954, -1.8788605204866384, -6.651672716510538, -26.83215902064473, -71.35188764899755], "accuracy": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]}, "step": 0, "step_requests": 30, "step_seconds": 4.0}');
CREATE TABLE torchgate_schema (
	version INTEGER NOT NULL, 
	PRIMARY KEY (version)
);
INSERT INTO "torchgate_schema" VALUES(1);
CREATE TABLE torchgate_secrets (
	name VARCHAR(100) NOT NULL, 
	value VARCHAR(200) NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "torchgate_secrets" VALUES('receipts','5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed');
CREATE INDEX ix_torchgate_events_model ON torchgate_events (model);
COMMIT;
