"""Data in, a table and a plot out."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from sandbox import new_sandbox  # noqa: E402

SALES = "month,apples,pears\nJanuary,10,7\nFebruary,12,9\nMarch,21,14\nApril,17,11\n"
ANALYSIS = """
import matplotlib
matplotlib.use("Agg")
import pandas
sales = pandas.read_csv("sales.csv", index_col="month")
sales["total"] = sales.sum(axis=1)
print(sales.to_string())
print("best month:", sales.total.idxmax())
sales[["apples", "pears"]].plot.bar(stacked=True).figure.savefig("sales.png")
"""
target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "sales.png")

with new_sandbox() as api:
    home = api.sandbox.get_context().home_dir
    api.file.upload_file(file=("sales.csv", SALES.encode()), path=f"{home}/sales.csv")
    api.file.write_file(file=f"{home}/analysis.py", content=ANALYSIS)
    result = api.bash.exec(command="python3 analysis.py", timeout=200).data
    if result.exit_code != 0:
        sys.exit(result.stderr)
    print(result.stdout.strip())
    target.write_bytes(b"".join(api.file.download_file(path=f"{home}/sales.png")))
    print("plot:", target)
