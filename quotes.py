# fragments of removed message strings (old) still present anywhere
import subprocess, re, os

d = subprocess.run(
    ["git", "-C", "/work/main", "diff", "-U0", "06ea4d4a..HEAD", "--", "profiler"], capture_output=True, text=True
).stdout
old = []
for l in d.splitlines():
    if l.startswith("-") and not l.startswith("---"):
        for m in re.finditer(r'"((?:[^"\\]|\\.)*)"', l):
            for frag in re.split(r"\{[^}]*\}", m.group(1)):
                frag = frag.strip(" :;,.")
                if len(frag) >= 14 and " " in frag:
                    old.append(frag)
new = open("/dev/null").read()
files = subprocess.run(["git", "-C", "/work/main", "ls-files"], capture_output=True, text=True).stdout.split("\n")
texts = {}
for f in files:
    if f.endswith((".md", ".py", ".txt", ".csv", ".toml", ".yml", ".js", ".html", "justfile")):
        try:
            texts[f] = open("/work/main/" + f).read()
        except Exception:
            pass
code = " ".join(t for f, t in texts.items() if f.startswith("profiler/"))
flat = {f: re.sub(r"\s+", " ", t) for f, t in texts.items()}
for o in sorted(set(old)):
    if o in re.sub(r"\s+", " ", code):
        continue
    hits = [f for f, t in flat.items() if o in t]
    if hits:
        print(repr(o), hits[:8])
