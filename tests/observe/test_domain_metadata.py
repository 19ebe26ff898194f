"""SLOs in the metadata of domains: no content raises an exception."""

from __future__ import annotations

from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slo_ctl.host.libvirt import URI, fields_of
from slo_ctl.model.slo import FIELD_NAMES

NS = f"xmlns:slo-ctl='{URI}'"


def domain(*elements: str) -> str:
    return f"<domain><name>web</name><metadata>{''.join(elements)}</metadata></domain>"


def noted(xml: str) -> tuple[dict[str, float], list[str]]:
    notes: list[str] = []
    return fields_of(xml, notes.append), notes


def test_every_field_of_the_metadata_is_read() -> None:
    xml = domain(
        "<other xmlns='urn:x' weight='9'/>",
        f"<slo-ctl:slo {NS} weight='3' min_iops='100' max_iops='5e3' max_bandwidth='100MiB' p99='5ms'/>",
    )
    assert noted(xml) == (
        {
            "weight": 3.0,
            "min_iops": 100.0,
            "max_iops": 5000.0,
            "max_bandwidth_bytes_s": 100.0 * 2**20,
            "p99_latency_us": 5000.0,
        },
        [],
    )


@pytest.mark.parametrize(
    "xml",
    [
        "<domain/>",
        domain(),
        domain("<slo weight='3'/>"),
        domain("<slo xmlns='urn:other' weight='3'/>"),
        f"<domain><slo xmlns='{URI}' weight='3'/></domain>",
    ],
)
def test_domain_without_metadata_has_no_fields(xml: str) -> None:
    assert noted(xml) == ({}, [])


@pytest.mark.parametrize(
    ("element", "fields", "note"),
    [
        ("weight='-1' min_iops='5'", {"min_iops": 5.0}, "VM web: libvirt metadata: weight=-1 is out of"),
        ("wieght='3'", {}, "unknown attribute wieght is ignored; did you mean weight?"),
        ("min_iops='9' max_iops='5' weight='2'", {"weight": 2.0}, "both are ignored"),
        ("p99='5'", {}, "is not a time"),
        ("max='5' total_iops_sec='6'", {"max_iops": 5.0}, "as max_iops is given already; give it once"),
    ],
)
def test_invalid_fields_are_noted(element: str, fields: dict[str, float], note: str) -> None:
    found, notes = noted(domain(f"<slo-ctl:slo {NS} {element}/>"))
    assert found == fields
    assert len(notes) == 1
    assert note in notes[0]


def test_first_of_two_elements_counts() -> None:
    xml = domain(*(f"<slo-ctl:slo {NS} weight='{weight}'/>" for weight in (1, 2)))
    assert noted(xml) == (
        {"weight": 1.0},
        ["VM web: libvirt metadata: 2 elements slo-ctl:slo; only the first one is used"],
    )


@pytest.mark.parametrize("xml", ["", "<domain>", "<!DOCTYPE a [<!ENTITY b 'c'>]><domain/>"])
def test_xml_that_is_not_a_domain_is_noted(xml: str) -> None:
    assert fields_of(xml) == {}
    assert len(noted(xml)[1]) == 1


printable = st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["Cs"])


@given(st.dictionaries(st.sampled_from(["weight", "min_iops", "max_iops", "p99", "x"]), st.text(printable)))
def test_any_attribute_is_a_field_or_noted(attributes: dict[str, str]) -> None:
    words = " ".join(f"{key}={quoteattr(value)}" for key, value in attributes.items())
    fields, notes = noted(domain(f"<slo-ctl:slo {NS} {words}/>"))
    assert set(fields) <= set(FIELD_NAMES)
    assert len(fields) + 2 * len(notes) >= len(attributes)
