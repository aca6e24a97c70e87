#!/usr/bin/env python3
"""Clients of `cedar serve`: AIPerf's figures, and those of `cedar run backend=http`, beside the server's own database
over the same requests; and the openai package.

usage: clients.py CEDAR FOLDER
Runs with the interpreter of an environment that has both packages (tests/clients.sh makes it). FOLDER is for what it
writes. The tokenizer is made here from the rule of docs/SERVE.md, so AIPerf's token counts are its own.
"""
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time

CEDAR, FOLDER = sys.argv[1], sys.argv[2]
VOCAB = 512                             # of the model "tiny"
PROMPT = 800                            # tokens, as the answers long enough for a client's own overhead to be small
WARMUP = 2
AIPERF_S = 300                          # of one run: a minute where nothing else needs the processors
RUNS = [(1, 12, 400, "completions"), (8, 32, 150, "chat"), (32, 64, 150, "completions")]
CHAT_LINES = len("user: \nassistant: ")         # tokens of a chat's prompt beside its one message
LIMITS = {50: 0.02, 90: 0.05}
failures = []


def check(ok, what):
    print(("ok      " if ok else "FAILED  ") + what, flush=True)
    if not ok:
        failures.append(what)


def character(token):
    if token in (9, 10, 13) or 32 <= token < 127:
        return chr(token)
    return chr(0xF0000 + token + (2 if token >= 0xFFFE else 0))


def make_tokenizer(folder):
    os.makedirs(folder, exist_ok=True)
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "vocab": {character(i): i for i in range(VOCAB)}, "merges": []}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Fuse"}, "model": model}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 4096,
              "clean_up_tokenization_spaces": False}
    with open(folder + "/tokenizer.json", "w") as f:
        json.dump(tokenizer, f)
    with open(folder + "/tokenizer_config.json", "w") as f:
        json.dump(config, f)


class Server:
    """`cedar serve` as a process; its database is complete once the block is left."""

    def __init__(self, db, *words):
        self.db, self.words = db, words

    def __enter__(self):
        self.process = subprocess.Popen(
            [CEDAR, "serve", "--model", "tiny", "--port", "0", "-r", "-o", self.db, *self.words],
            stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        self.url = re.search(r"http://[\d.:]+", line).group(0)
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        check(self.process.wait(60) == 0, "the server ends with exit code 0")


def percentile(values, p):
    values = sorted(values)
    k = (len(values) - 1) * p / 100
    low = int(k)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (k - low)


def run_aiperf(url, tokenizer, concurrency, requests, answer, endpoint, folder):
    command = [os.path.dirname(sys.executable) + "/aiperf", "profile", "-m", "tiny", "--tokenizer", tokenizer,
               "--url", url, "--endpoint-type", endpoint, "--streaming",
               "--synthetic-input-tokens-mean", str(PROMPT), "--synthetic-input-tokens-stddev", "0",
               "--output-tokens-mean", str(answer), "--output-tokens-stddev", "0",
               "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0",
               "--concurrency", str(concurrency), "--request-count", str(requests),
               "--warmup-request-count", str(WARMUP), "--random-seed", "7", "--artifact-dir", folder,
               "--ui", "none", "--no-gpu-telemetry", "--workers-max", "1", "--record-processor-service-count", "1"]
    with open(folder + ".log", "w") as log:
        try:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=AIPERF_S).returncode
        except subprocess.TimeoutExpired:
            code = f"none within {AIPERF_S} s"
    check(code == 0, f"AIPerf at concurrency {concurrency}: exit code {code} ({folder}.log)")
    if code != 0:
        return {}
    with open(folder + "/profile_export.jsonl") as f:
        rows = [json.loads(line) for line in f]
    return {r["metadata"]["x_request_id"]: r for r in rows if r["metadata"]["benchmark_phase"] == "profiling"}


def own_rows(db):
    rows = sqlite3.connect(db).execute(
        "SELECT trace_id, in_tokens, out_tokens, (first_ns - arrival_ns) / 1e6,"
        " (last_ns - first_ns) / 1e6 / (out_tokens - 1), error FROM requests")
    return {r[0]: r[1:] for r in rows}


def compare_times(at, client, theirs, ours):
    """Rows by request: TTFT and ITL in ms are the third and fourth members."""
    for name, column in (("TTFT", 2), ("ITL", 3)):
        for p, limit in LIMITS.items():
            a = percentile([r[column] for r in theirs.values()], p)
            b = percentile([ours[i][column] for i in theirs], p)
            check(abs(a - b) <= limit * b, f"{at}{name} p{p}: {client} {a:.3f} ms, the server's database {b:.3f} ms, "
                                           f"{100 * (a - b) / b:+.2f} % of {100 * limit:g} %")


def compare(concurrency, requests, answer, endpoint, theirs, ours):
    at = f"concurrency {concurrency}, {endpoint}: "
    lines = CHAT_LINES if endpoint == "chat" else 0
    check(len(theirs) == requests and not any(r.get("error") for r in theirs.values()),
          f"{at}AIPerf has {len(theirs)} of {requests} requests, none in error")
    missing = [i for i in theirs if i not in ours or ours[i][4]]
    check(not missing, f"{at}each is in cedar's database, without error")
    if missing or not theirs:
        return
    counts = all(r["metrics"]["input_sequence_length"]["value"] == PROMPT == ours[i][0] - lines and
                 r["metrics"]["output_sequence_length"]["value"] == ours[i][1] == answer and
                 r["metrics"]["usage_prompt_tokens"]["value"] == ours[i][0] and
                 r["metrics"]["usage_completion_tokens"]["value"] == ours[i][1] for i, r in theirs.items())
    check(counts, f"{at}AIPerf's own token counts, those of usage and the database's are the same")
    compare_times(at, "AIPerf", {i: (None, None, r["metrics"]["time_to_first_token"]["value"],
                                    r["metrics"]["inter_token_latency"]["value"]) for i, r in theirs.items()}, ours)


def aiperf():
    tokenizer = FOLDER + "/tokenizer"
    make_tokenizer(tokenizer)
    for concurrency, requests, answer, endpoint in RUNS:
        db, artifacts = f"{FOLDER}/aiperf-{concurrency}.db", f"{FOLDER}/aiperf-{concurrency}"
        with Server(db, "lanes=32", "threads=1") as server:
            theirs = run_aiperf(server.url, tokenizer, concurrency, requests, answer, endpoint, artifacts)
        compare(concurrency, requests, answer, endpoint, theirs, own_rows(db))


def chat(client, **options):
    return client.chat.completions.create(
        model="tiny", messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}],
        max_completion_tokens=24, seed=5, extra_body={"ignore_eos": True}, **options)


def openai_package():
    import openai
    db = FOLDER + "/openai.db"
    with Server(db) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        check([m.id for m in client.models.list()] == ["tiny"], "openai: models.list")
        whole = chat(client, logprobs=True, top_logprobs=2)
        text = whole.choices[0].message.content
        check(whole.usage.completion_tokens == 24 == len(text) and whole.choices[0].finish_reason == "length",
              "openai: chat completion, one character a token")
        check(len(whole.choices[0].logprobs.content) == 24 and
              all(len(t.top_logprobs) == 2 for t in whole.choices[0].logprobs.content), "openai: logprobs")
        pieces, usage = [], None
        for chunk in chat(client, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            pieces += [c.delta.content for c in chunk.choices if c.delta.content]
        check("".join(pieces) == text and len(pieces) > 1, "openai: a stream with the same seed has the same text")
        check(usage is not None and usage.completion_tokens == 24 and usage.prompt_tokens == whole.usage.prompt_tokens,
              "openai: usage at the end of the stream")
        check(usage.prompt_tokens_details.cached_tokens > 0, "openai: the repeated prompt was cached")
        plain = client.completions.create(model="tiny", prompt=[5, 6, 7], max_tokens=3, temperature=0,
                                          extra_body={"ignore_eos": True})
        check(plain.usage.prompt_tokens == 3 and len(plain.choices[0].text) == 3, "openai: completion of token ids")
        try:
            client.completions.create(model="tiny", prompt="a" * 5000, max_tokens=5)
            check(False, "openai: a context overflow is an error")
        except openai.BadRequestError as e:
            check(e.code == "context_length_exceeded", "openai: a context overflow is BadRequestError with its code")
        try:
            client.completions.create(model="large", prompt="a")
            check(False, "openai: an unknown model is an error")
        except openai.NotFoundError as e:
            check(e.code == "model_not_found", "openai: an unknown model is NotFoundError")
    rows = sqlite3.connect(db).execute("SELECT COUNT(*), SUM(error <> '') FROM requests").fetchone()
    check(rows == (3, 0), f"openai: the database has the three requests that ran: {rows}")


def cedar_itself():
    """`cedar run backend=http` is a client too: its database beside the server's, over the same requests."""
    trace, scenario, db, own = (FOLDER + name for name in ("/own.jsonl", "/own.lua", "/own-served.db", "/own.db"))
    requests, answer = 24, 150
    with open(trace, "w") as f:
        for i in range(requests):
            f.write(json.dumps({"timestamp": 0, "input_length": PROMPT, "output_length": answer,
                                "hash_ids": [2 * i, 2 * i + 1]}) + "\n")
    with Server(db, "lanes=32", "threads=1") as server:
        with open(scenario, "w") as f:
            f.write(f'run {{ backend = "http", endpoints = "{server.url}", http_api = "completions",\n'
                    f'  http_vocab = {VOCAB}, model = "tiny", trace = "{trace}", lanes = 8 }}\n')
        code = subprocess.run([CEDAR, "run", scenario, "-q", "-r", "-o", own]).returncode
    check(code == 0, f"cedar run at concurrency 8: exit code {code}")
    ours = {int(i.rsplit("-", 1)[1]): row for i, row in own_rows(db).items()}
    theirs = {r[0]: r[1:] for r in sqlite3.connect(own).execute(
        "SELECT request_id, in_tokens, out_tokens, (first_ns - arrival_ns) / 1e6,"
        " (last_ns - first_ns) / 1e6 / (out_tokens - 1), error FROM requests")}
    check(len(theirs) == requests and theirs.keys() == ours.keys() and
          all(r[:2] == ours[i][:2] == (PROMPT, answer) and not r[4] for i, r in theirs.items()),
          f"cedar run: {len(theirs)} of {requests} requests without error, with the server's token counts")
    if theirs.keys() == ours.keys():
        compare_times("cedar run: ", "it", theirs, ours)


started = time.monotonic()
openai_package()
aiperf()
cedar_itself()
print(f"{len(failures)} failed, {time.monotonic() - started:.0f} s")
sys.exit(1 if failures else 0)
