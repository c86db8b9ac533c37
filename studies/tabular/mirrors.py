"""Addresses on the web of the data files that may be passed on, and the checksums of what lies there.

Left out are the sets whose licence asks every user to fetch the file himself (MEPS), those that were pieced
together or drawn at random and lie nowhere in this form (taxi, calcofi, scm1d_partial), and the complete
scm1d, of which no checksum is known.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from .remote import RemoteFile

# SHA-256 of the uncompressed files.
_SUMS = """
8ee416404862dc199c7247ba207dd60c444eb37e9d4dfe76ea55319fa4607359  camehl/households.csv
63d90546808e08166159bac726f967d9584fd97513b47576f70bf599832c0012  cevid/air.csv
cb2b922b4c92e4dfa72afe96f1cd6302322687446b16d6f2a569dafffd350174  cevid/births1.csv
3d03e84eebe821e2c85ad1afd679b7816adb90a6fb49f02ddb1bf588490cbdb8  cevid/births2.csv
b41b26c21b83d7f166cf01b51c10645c09e2bd0e4fa1e232424d1f6fa5f30262  cevid/wage.csv
b76b24c41db056d6218e0616033276f018f89351a324089f16458aa6ad5fc53d  del_barrio/ansur2.csv
4277cfcb4e91a181746cbc654f001b57951c9e6a80f4f795fdb5c807e0848f40  feldman/bio.csv
f3cc953ea9913361be6d3bae2c393eef73eab57b1cb8e5bf8a22f1e5eb5dd05f  feldman/blog_data.csv
d0875baa0251b21d4bdc9d2ae940a4fe0bb6009824f23dd0e2a5b2bf04557b7e  feldman/house.csv
ed935ba476c4994ba40d6712d590fb389709cceba7cf7dbbb33ef28c84762bb9  mulan/atp1d.arff
77d59efdf4a6329c71c854684de7409d0d61d3bebccd6821ae268c1620c95b2d  mulan/atp7d.arff
37777374030f592a53cbcf597ae0aa6105238a1c696dd04ccb229be982f6bc5b  mulan/edm.arff
8277d9094ccda6da2cd1c2b79c90ca201fa3695e75aca173ffc43138dcab0071  mulan/enb.arff
78ce7655f49073e3622ef7ba25657b3900a2b279ba3d48cb82e353e56bac3d2a  mulan/jura.arff
37f9fa429f6f2ece2cdfd08e84649971e61ee0b4e75d66166c082bacf3d36251  mulan/oes10.arff
aee74aa656c709f797f45d817c41996be94c2e924c0f1e7ad315fb7e2f1a9498  mulan/oes97.arff
994f9e334811e040d2002e46d3ce06504e5d441249bf65448f53d6ea24b33cf0  mulan/rf1.arff
2261a94bff5cfb617dbd2e7fd2c17d15d45135103a081917d1358c2ad13a4bd2  mulan/scm20d.arff
f7d3c7b134c0e5ddff56a7900371cb44328f9b7f550203c4a556929203ea81e9  mulan/scpf.arff
8f78e64aca64f7c0c7ba4d9b2f114feb2a6f72e6116e87d7dab94e7cab426d93  mulan/sf1.arff
2c1ac60f3e612b0e0bc9884ffe98a205ce07ca83f3f89c019220fde350396795  mulan/sf2.arff
3a9a9eba416b06c7668153b44073a0e165afbfc9e526d53b174e5f97a707ca6c  mulan/slump.arff
4a0906b4a51bf52c986790ddaf261ba51faa3da9cffe823badabd88d38d252fe  mulan/wq.arff
"""

_GITHUB = "https://raw.githubusercontent.com"
_PAPER = f"{_GITHUB}/Vekteur/latent-recalibration/3d3f766ab87a314960f4a5231a0812e7cd35bc98/data"
_MULAN_FIRST = f"{_GITHUB}/tsoumakas/mulan/122fce8fbefdb292ba3acbb03867a7fc8f1dcaa9/data/multi-target"
_MULAN_SECOND = f"{_GITHUB}/tsoumakas/mulan/49efcccb0666c59f57d942c13c6184af028c7650/data/multi-target"
_SHORT_NUMBERS = (  # the same values in another number format than Mulan's own files
    f"{_GITHUB}/Zhendong-Wang/Probabilistic-Conformal-Prediction/"
    "e6f505beaf07f208cb496f85ac91fd37482677c6/data"
)
_SUPERLEVEL_SETS = f"{_GITHUB}/aschnuecker/Superlevel-sets/19b015bfc683e9dad6a7c7965eed7ae22e186e99"


def _urls(file: str) -> tuple[str, ...]:
    """Addresses of a file by its path in the data folder: where it comes from, then the paper's copy."""
    path = PurePosixPath(file)
    copy = f"{_PAPER}/{file}"
    if path.stem in ("rf1", "scm20d"):
        return (f"{_SHORT_NUMBERS}/{path.name}",)
    if path.stem == "households":
        return (f"{_SUPERLEVEL_SETS}/Matlab/CEX_2015_b.csv", copy)
    if path.parent.name == "mulan":
        folder = _MULAN_SECOND if path.stem in ("edm", "enb", "scpf", "wq") else _MULAN_FIRST
        return (f"{folder}/{path.name}", copy)
    return (copy,)


MIRRORS: dict[str, RemoteFile] = {
    PurePosixPath(file).stem: RemoteFile(file, sha256, _urls(file))
    for sha256, file in (line.split() for line in _SUMS.strip().splitlines())
}
