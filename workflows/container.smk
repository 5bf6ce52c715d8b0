# With --software-deployment-method apptainer the commands of all rules run in the image that the configuration names.
import shlex

from snakemake.settings.types import DeploymentMethod

DEPLOYMENT = workflow.deployment_settings


def image():
    """Where the image is; None without containers. `UserError` for a file that is not there."""
    if DeploymentMethod.APPTAINER not in DEPLOYMENT.deployment_method:
        return None
    named = SETTINGS["container"]
    if "://" not in named and not Path(named).is_file():
        raise UserError(
            f"configuration: container: there is no image {named}; allowed: an image file (build one with"
            " 'apptainer build ddrl.sif workflows/containers/ddrl.def'), or an address such as docker://NAME:TAG"
        )
    return named


def inside():
    """What stands before a command that another one, such as srun, is to start in the image."""
    if IMAGE is None:
        return ""
    given = shlex.split(DEPLOYMENT.apptainer_args or "")
    words = ["apptainer", "exec", "--home", os.getcwd(), *given, IMAGE]
    return shlex.join(words).replace("{", "{{").replace("}", "}}") + " "


try:
    IMAGE = image()
except UserError as error:
    refuse(error)

if IMAGE is not None:

    container: IMAGE
