"""The certificate of a charged release: what is declared of it, bound to its files and signed.

Guarantees: everything declared is what was charged; unreleased checkpoints are named by commitments alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dpmerge.certificate.commitments import CertifiedFile, release_salt
from dpmerge.certificate.dsse import CERTIFICATE_NAME, Certificate, certificate_bytes, read_certificate
from dpmerge.certificate.model_card import CARD_NAME, model_card
from dpmerge.certificate.predicate import Input, LedgerEntry, Predicate
from dpmerge.errors import CannotWriteError
from dpmerge.ledger.charge import Charge
from dpmerge.portfolio.portfolio import Portfolio
from dpmerge.releasing.commitment_salt import checkpoint_commitment, salt_of
from dpmerge.releasing.release_job import ReleaseJob
from dpmerge.releasing.settings import ReleaseSettings


def certify(job: ReleaseJob, folder: Path, files: Mapping[str, CertifiedFile]) -> Certificate:
    """Write the certificate and the model card of these files into their folder."""
    settings = job.settings
    signer = None if settings.key is None else job.unlock(Path(settings.key))
    declared = predicate_of(job.charge, settings, job.portfolio, files)
    content = certificate_bytes(declared, files, signer, settings.certificate_version)
    certificate = read_certificate(content)
    try:
        (folder / CERTIFICATE_NAME).write_bytes(content)
        write_card(folder, certificate)
    except OSError as error:
        accepted = "room for the certificate"
        raise CannotWriteError.from_os(error, field="output", path=folder, accepted=accepted) from None
    return certificate


def write_card(folder: Path, certificate: Certificate) -> None:
    """The model card that goes with a certificate."""
    (folder / CARD_NAME).write_text(
        model_card(certificate.content, certificate.files, certificate.version), encoding="utf-8"
    )


def predicate_of(
    charge: Charge, settings: ReleaseSettings, portfolio: Portfolio, files: Mapping[str, CertifiedFile]
) -> Predicate:
    """What the certificate of a charge declares of these files."""
    salt = release_salt(salt_of(portfolio, create=True), charge.release_id)
    version, terms = settings.certificate_version, charge.terms
    drawn = len(terms.candidates) > 1 and settings.reveal_draw
    declared = Predicate(
        release=charge.release_id,
        charged_at=charge.entry.time,
        target=settings.target,
        terms=terms,
        final=charge.final,
        portfolio=settings.facts,
        adapters=settings.adapters,
        donor=settings.donor,
        drawn=charge.index if drawn else None,
        draw_number=charge.draw_number if version > 1 else None,
        inputs=[
            Input(run=each.run, step=each.step, commitment=checkpoint_commitment(portfolio, each, salt))
            for each in terms.inputs
        ],
        ledger=LedgerEntry(id=charge.ledger, entry=charge.entry.seq, hash=charge.entry.hash),
        tools=settings.tools,
        audit=settings.audit,
    )
    return declared.bound(files, salt, version) if version > 1 else declared
